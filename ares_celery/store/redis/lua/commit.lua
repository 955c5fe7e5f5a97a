-- Applies the whole of one decided plan, or nothing.
-- KEYS[1]  agent      hash    the record
-- KEYS[2]  op         string  the outcome of this operation id
-- KEYS[3]  runtime    hash    this shard's copy of the runtime's state
-- KEYS[4]  deadlines  zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[5]  counters   hash    the namespace's counters, this shard's part
-- KEYS[6]  hosts      zset    <identity>|<agent id>, score 0: who hosts whom
-- KEYS[7]  events     stream  the agent's events, entry id <version>-0
-- KEYS[8]  feed       stream  pointers to new events
-- KEYS[9]  streams    hash    versions of streams that have no record
-- KEYS[10] left       zset    index of the state before
-- KEYS[11] entered    zset    index of the state after
-- KEYS[12] audit      stream  who asked for what, and why
-- KEYS[13] rest       stream  a mark that the agent has come to rest, for those who wait for its answer
-- ARGV[1]  agent id
-- ARGV[2]  demanded revision, empty: the agent must not exist
-- ARGV[3]  demanded epoch, as a string
-- ARGV[4]  demanded generation of the runtime's state
-- ARGV[5]  demanded deadline, empty: none
-- ARGV[6]  its demanded score
-- ARGV[7]  seconds for which the outcome is remembered
-- ARGV[8]  most entries of the feed
-- ARGV[9]  channel on which the owner is woken, empty: none
-- ARGV[10] epoch afterwards
-- ARGV[11] 1: the state changes
-- ARGV[12] what the signal grows by
-- ARGV[13] demanded score of the lease, empty: none, 0: there must be no lease
-- ARGV[14] channel on which it is told that the agent comes to rest, empty: it does not
-- ARGV[15] kind of operation, for the outcome: an operation id is for one kind
-- ARGV[16+] lists, each as its length and its items: fields to set (name, value), fields to clear, members of KEYS[6]
--           to add, to remove, deadlines (member, score or empty), counters (name, by), events (data, type),
--           audit entries (data, most entries of the stream)
-- Reply: {'done' | 'repeated', outcome} or {'conflict', what has changed}; outcome is epoch|revision|version|now|kind of operation.

local remembered = redis.call('GET', KEYS[2])
if remembered then
  return {'repeated', remembered}
end

local record = redis.call('HMGET', KEYS[1], 'revision', 'epoch', 'version')
if (record[1] or '') ~= ARGV[2] then
  return {'conflict', 'revision'}
end
if ARGV[2] ~= '' and (record[2] or '0') ~= ARGV[3] then
  return {'conflict', 'epoch'}
end
if (redis.call('HGET', KEYS[3], 'generation') or '0') ~= ARGV[4] then
  return {'conflict', 'generation'}
end
if ARGV[5] ~= '' then
  local score = redis.call('ZSCORE', KEYS[4], ARGV[5])
  if not score or tonumber(score) ~= tonumber(ARGV[6]) then
    return {'conflict', 'deadline'}
  end
end
if ARGV[13] ~= '' then
  -- A renewal changes no revision, but it moves the moment from which the next incarnation may be claimed.
  local score = redis.call('ZSCORE', KEYS[4], 'lease|' .. ARGV[1])
  if tonumber(score or '0') ~= tonumber(ARGV[13]) then
    return {'conflict', 'lease'}
  end
end

-- Nothing was written so far; from here on nothing is refused.

local position = 15
local function take()
  position = position + 1
  return ARGV[position]
end
local function take_list(width)
  local items = {}
  for i = 1, tonumber(take()) * width do
    items[i] = take()
  end
  return items
end

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local version = tonumber(record[3] or '0')
local revision = record[1] or '0'

local changed = take_list(2)
local cleared = take_list(1)
if #changed > 0 or #cleared > 0 or ARGV[12] ~= '0' then
  revision = string.format('%.0f', tonumber(revision) + 1)
  if ARGV[2] == '' then
    version = tonumber(redis.call('HGET', KEYS[9], ARGV[1]) or '0')
    redis.call('HDEL', KEYS[9], ARGV[1])
    redis.call('HSET', KEYS[1], 'created_at', now, 'version', string.format('%.0f', version))
  end
  if #cleared > 0 then
    redis.call('HDEL', KEYS[1], unpack(cleared))
  end
  redis.call('HSET', KEYS[1], 'revision', revision, unpack(changed))
  if ARGV[12] ~= '0' then
    redis.call('HINCRBY', KEYS[1], 'signal', ARGV[12])
  end
end
if ARGV[11] == '1' then
  redis.call('ZREM', KEYS[10], ARGV[1])
  redis.call('ZADD', KEYS[11], now, ARGV[1])
  redis.call('HSET', KEYS[1], 'changed_at', now)
end
if ARGV[14] ~= '' then
  redis.call('XADD', KEYS[13], 'MAXLEN', 1, '*', 's', '')
  redis.call('EXPIRE', KEYS[13], 60)
  redis.call('PUBLISH', ARGV[14], ARGV[1])
elseif ARGV[11] == '1' then
  -- Whoever asks from now on waits for an answer, not for news of the past.
  redis.call('DEL', KEYS[13])
end

local hosted = take_list(1)
local freed = take_list(1)
for i = 1, #freed do
  redis.call('ZREM', KEYS[6], freed[i])
end
for i = 1, #hosted do
  redis.call('ZADD', KEYS[6], 0, hosted[i])
end

local deadlines = take_list(2)
for i = 1, #deadlines, 2 do
  if deadlines[i + 1] == '' then
    redis.call('ZREM', KEYS[4], deadlines[i])
  else
    redis.call('ZADD', KEYS[4], deadlines[i + 1], deadlines[i])
  end
end

local counters = take_list(2)
for i = 1, #counters, 2 do
  redis.call('HINCRBY', KEYS[5], counters[i], counters[i + 1])
end

local events = take_list(2)
for i = 1, #events, 2 do
  version = version + 1
  local number = string.format('%.0f', version)
  redis.call('XADD', KEYS[7], number .. '-0', 'd', events[i], 't', now)
  redis.call('XADD', KEYS[8], 'MAXLEN', '~', ARGV[8], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. events[i + 1])
end
if #events > 0 then
  redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
end

local audit = take_list(2)
for i = 1, #audit, 2 do
  redis.call('XADD', KEYS[12], 'MAXLEN', '~', audit[i + 1], '*', 'd', audit[i], 't', now)
end

local outcome = ARGV[10] .. '|' .. revision .. '|' .. string.format('%.0f', version) .. '|' .. now
  .. '|' .. ARGV[15]
redis.call('SET', KEYS[2], outcome, 'EX', ARGV[7])
if ARGV[9] ~= '' then
  redis.call('PUBLISH', ARGV[9], ARGV[1])
end
return {'done', outcome}
