-- Ends faults of an agent: those that somebody heals, or those whose time is over.
-- KEYS[1] agent      hash    the record
-- KEYS[2] op         string  the outcome of this operation id
-- KEYS[3] faults     hash    fault id: <kind>|<since>|<epoch>|<seen>|<used>|<draw>|<count>|<threshold>|<JSON>
-- KEYS[4] disturbed  set     ids of the shard's agents that have faults
-- KEYS[5] deadlines  zset    <kind>|<agent id>[|name] by microseconds; that of a fault says when it ends
-- KEYS[6] events     stream  the agent's events, entry id <version>-0
-- KEYS[7] feed       stream  pointers to new events
-- KEYS[8] audit      stream  who asked for what, and why
-- ARGV[1]  agent id
-- ARGV[2]  1: only those whose time is over
-- ARGV[3]  type of the events
-- ARGV[4]  most entries of the feed
-- ARGV[5]  audit entry, empty: nobody asked
-- ARGV[6]  most entries of the audit stream
-- ARGV[7]  seconds for which the outcome is remembered, 0: it is not
-- ARGV[8]  kind of operation, for the outcome
-- ARGV[9]  what the channel of a host begins with
-- ARGV[10+] for each fault: its id, the event that tells of its end
-- Reply: {'done' | 'repeated', outcome} or {'missing'}, outcome is epoch|revision|version|now|kind of operation| and for
--        each fault that this ended id, end and value, each behind its length in bytes and a colon.

local remembered = ARGV[7] ~= '0' and redis.call('GET', KEYS[2])
if remembered then
  return {'repeated', remembered}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local record = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'revision', 'version', 'fence', 'owner_identity')
if not record[1] then
  for i = 10, #ARGV, 2 do
    redis.call('ZREM', KEYS[5], 'fault|' .. ARGV[1] .. '|' .. ARGV[i])
  end
  redis.call('SREM', KEYS[4], ARGV[1])
  return {'missing'}
end
local version, ended = tonumber(record[4] or '0'), {}
local count = 0
for i = 10, #ARGV, 2 do
  local member = 'fault|' .. ARGV[1] .. '|' .. ARGV[i]
  local ends, value = redis.call('ZSCORE', KEYS[5], member), redis.call('HGET', KEYS[3], ARGV[i])
  if ends and (ARGV[2] ~= '1' or tonumber(ends) <= tonumber(now)) then
    redis.call('ZREM', KEYS[5], member)
    if value then
      redis.call('HDEL', KEYS[3], ARGV[i])
      version = version + 1
      local number = string.format('%.0f', version)
      redis.call('XADD', KEYS[6], number .. '-0', 'd', ARGV[i + 1], 't', now)
      redis.call('XADD', KEYS[7], 'MAXLEN', '~', ARGV[4], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. ARGV[3])
      for _, part in ipairs({ARGV[i], string.format('%.0f', tonumber(ends)), value}) do
        ended[#ended + 1] = string.format('%d:', #part) .. part
      end
      count = count + 1
    end
  end
end
local left = redis.call('HLEN', KEYS[3])
if left == 0 then
  redis.call('SREM', KEYS[4], ARGV[1])
  redis.call('HDEL', KEYS[1], 'faults')
else
  redis.call('HSET', KEYS[1], 'faults', left)
end
if count > 0 then
  redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
  redis.call('HINCRBY', KEYS[1], 'signal', 1)
  if ARGV[5] ~= '' then
    redis.call('XADD', KEYS[8], 'MAXLEN', '~', ARGV[6], '*', 'd', ARGV[5], 't', now)
  end
end
local outcome = table.concat({record[2] or '0', record[3] or '0', string.format('%.0f', version), now, ARGV[8],
  table.concat(ended)}, '|')
if ARGV[7] ~= '0' then
  redis.call('SET', KEYS[2], outcome, 'EX', ARGV[7])
end
if count > 0 and record[5] and record[6] then
  redis.call('PUBLISH', ARGV[9] .. record[6], ARGV[1])
end
return {'done', outcome}
