-- Makes a fault active on an agent, once for each operation id, which is also the fault's id.
-- KEYS[1]  agent      hash    the record
-- KEYS[2]  op         string  the outcome of this operation id
-- KEYS[3]  faults     hash    fault id: <kind>|<since>|<epoch>|<seen>|<used>|<draw>|<count>|<threshold>|<JSON>
-- KEYS[4]  disturbed  set     ids of the shard's agents that have faults
-- KEYS[5]  chaos      hash    until when faults are allowed for a time
-- KEYS[6]  deadlines  zset    <kind>|<agent id>[|name] by microseconds; that of a fault says when it ends
-- KEYS[7]  events     stream  the agent's events, entry id <version>-0
-- KEYS[8]  feed       stream  pointers to new events
-- KEYS[9]  audit      stream  who asked for what, and why
-- KEYS[10] snapshots  list    newest first: five fields and bars, then the state
-- ARGV[1]  agent id
-- ARGV[2]  fault id
-- ARGV[3]  kind of the fault
-- ARGV[4]  1: faults are allowed for good
-- ARGV[5]  1: it is done to an incarnation, so there must be one
-- ARGV[6]  microseconds until it ends
-- ARGV[7]  what the value holds behind <used>
-- ARGV[8]  1: the agent has one fault of the kind, which the next one replaces
-- ARGV[9]  most faults of an agent
-- ARGV[10] how the newest snapshot is damaged: flip, cut, empty: not at all
-- ARGV[11] where in its state, in millionths
-- ARGV[12] event that tells of the fault
-- ARGV[13] its type
-- ARGV[14] most entries of the feed
-- ARGV[15] audit entry
-- ARGV[16] most entries of the audit stream
-- ARGV[17] seconds for which the outcome is remembered
-- ARGV[18] kind of operation, for the outcome
-- ARGV[19] what the channel of a host begins with
-- ARGV[20] seconds that the faults are kept behind the last end of one
-- ARGV[21] type of the events that tell of what is replaced
-- ARGV[22+] for each fault that may be replaced: its id, the event
-- Reply: {'done' | 'repeated', outcome}, {'missing'}, {'forking', where its history comes from}, {'disabled'},
--        {'state', the agent's}, {'full'} or {'conflict'}: another fault is there to be replaced; outcome is
--        epoch|revision|version|now|kind of operation|until|value.

local remembered = redis.call('GET', KEYS[2])
if remembered then
  return {'repeated', remembered}
end
local record = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'revision', 'version', 'fence', 'owner_identity',
  'forking', 'forked_from')
if not record[1] then
  return {'missing'}
end
if record[7] then
  -- The versions up to the fork's are those of its source.
  return {'forking', record[8]}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local allowed_until = tonumber(redis.call('HGET', KEYS[5], 'until') or '0')
if ARGV[4] ~= '1' and allowed_until <= tonumber(now) then
  return {'disabled'}
end
if ARGV[5] == '1' and not record[5] then
  return {'state', record[1]}
end
local replaced, others = {}, 0
for _, id in ipairs(redis.call('HKEYS', KEYS[3])) do
  local kind = string.match(redis.call('HGET', KEYS[3], id), '^[^|]*')
  if ARGV[8] == '1' and kind == ARGV[3] then
    local event
    for i = 22, #ARGV, 2 do
      if ARGV[i] == id then
        event = ARGV[i + 1]
      end
    end
    if not event then
      return {'conflict'}
    end
    replaced[#replaced + 1] = {id, event}
  else
    others = others + 1
  end
end
if others >= tonumber(ARGV[9]) then
  return {'full'}
end

-- Nothing was written so far; from here on nothing is refused.

local version = tonumber(record[4] or '0')
local function tell(data, kind)
  version = version + 1
  local number = string.format('%.0f', version)
  redis.call('XADD', KEYS[7], number .. '-0', 'd', data, 't', now)
  redis.call('XADD', KEYS[8], 'MAXLEN', '~', ARGV[14], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. kind)
end
for _, one in ipairs(replaced) do
  redis.call('HDEL', KEYS[3], one[1])
  redis.call('ZREM', KEYS[6], 'fault|' .. ARGV[1] .. '|' .. one[1])
  tell(one[2], ARGV[21])
end
local ends = tonumber(now) + tonumber(ARGV[6])
if ARGV[4] ~= '1' then
  -- What is allowed for a time ends with that time.
  ends = math.min(ends, allowed_until)
end
local until_then = string.format('%.0f', ends)
local epoch = ARGV[5] == '1' and record[2] or '0'
local value = table.concat({ARGV[3], now, epoch, '0', '0', ARGV[7]}, '|')
redis.call('HSET', KEYS[3], ARGV[2], value)
redis.call('ZADD', KEYS[6], until_then, 'fault|' .. ARGV[1] .. '|' .. ARGV[2])
redis.call('SADD', KEYS[4], ARGV[1])
local lasts = math.ceil((ends - tonumber(now)) / 1000000) + tonumber(ARGV[20])
if redis.call('TTL', KEYS[3]) < lasts then
  redis.call('EXPIRE', KEYS[3], lasts)
end
local newest = ARGV[10] ~= '' and redis.call('LINDEX', KEYS[10], 0)
if newest and newest ~= '' then
  local head = string.match(newest, '^[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|()') or 1
  local at = head + math.floor((#newest - head + 1) * tonumber(ARGV[11]) / 1000000)
  at = math.max(1, math.min(at, #newest))
  local behind = ''
  if ARGV[10] == 'flip' then
    behind = string.char((string.byte(newest, at) + 1) % 256) .. string.sub(newest, at + 1)
  end
  redis.call('LSET', KEYS[10], 0, string.sub(newest, 1, at - 1) .. behind)
end
tell(ARGV[12], ARGV[13])
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version), 'faults', redis.call('HLEN', KEYS[3]))
redis.call('HINCRBY', KEYS[1], 'signal', 1)
redis.call('XADD', KEYS[9], 'MAXLEN', '~', ARGV[16], '*', 'd', ARGV[15], 't', now)
local outcome = table.concat({record[2] or '0', record[3] or '0', string.format('%.0f', version), now, ARGV[18],
  until_then, value}, '|')
redis.call('SET', KEYS[2], outcome, 'EX', ARGV[17])
if record[5] and record[6] then
  redis.call('PUBLISH', ARGV[19] .. record[6], ARGV[1])
end
return {'done', outcome}
