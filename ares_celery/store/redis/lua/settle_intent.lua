-- Settles a step whose outcome nobody knows, once: records what a person says came of it, or lets it run again.
-- KEYS[1] agent       hash    the record
-- KEYS[2] checkpoint  hash    the execution: state, envelope, one field for each recorded step
-- KEYS[3] intents     hash    <execution>|<step> of steps that were begun and must not be repeated
-- KEYS[4] settled     list    what was settled, <microseconds>|<settlement>, newest first
-- KEYS[5] deadlines   zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[6] events      stream  the agent's events, entry id <version>-0
-- KEYS[7] feed        stream  pointers to new events
-- KEYS[8] audit       stream  who asked for what, and why
-- ARGV[1] agent id
-- ARGV[2] field of KEYS[3]
-- ARGV[3] what it holds, demanded
-- ARGV[4] the step's field in KEYS[2]
-- ARGV[5] what is recorded of the step, empty: it runs again
-- ARGV[6] the settlement
-- ARGV[7] most settlements that are kept
-- ARGV[8] seconds for which they are kept
-- ARGV[9] event
-- ARGV[10] its type
-- ARGV[11] most entries of the feed
-- ARGV[12] audit entry
-- ARGV[13] most entries of the audit stream
-- ARGV[14] deadline by which the agent goes on when nothing is left to settle
-- Reply: {'done', now}, {'state', the agent's, or empty without one} or {'conflict'}.

local record = redis.call('HMGET', KEYS[1], 'state', 'created_at', 'version')
if record[1] ~= 'parked' then
  return {'state', record[1] or ''}
end
if redis.call('HGET', KEYS[3], ARGV[2]) ~= ARGV[3] then
  return {'conflict'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
redis.call('HDEL', KEYS[3], ARGV[2])
local left = redis.call('HINCRBY', KEYS[1], 'intents', -1)
local stored = redis.call('HMGET', KEYS[2], 'born', 'steps', ARGV[4])
-- An execution that is gone has no use for a record, and one of another agent of this id none for this one.
if ARGV[5] ~= '' and stored[1] and stored[1] == record[2] and not stored[3] then
  local number = string.format('%.0f', tonumber(stored[2] or '0') + 1)
  redis.call('HSET', KEYS[2], 'steps', number, ARGV[4], number .. '|' .. now .. '|' .. ARGV[5])
  redis.call('HINCRBY', KEYS[1], 'spent_steps', 1)
end
redis.call('LPUSH', KEYS[4], now .. '|' .. ARGV[6])
redis.call('LTRIM', KEYS[4], 0, tonumber(ARGV[7]) - 1)
redis.call('EXPIRE', KEYS[4], ARGV[8])
if left <= 0 then
  redis.call('ZADD', KEYS[5], now, ARGV[14])
end
local version = string.format('%.0f', tonumber(record[3] or '0') + 1)
redis.call('XADD', KEYS[6], version .. '-0', 'd', ARGV[9], 't', now)
redis.call('XADD', KEYS[7], 'MAXLEN', '~', ARGV[11], '*', 'e', ARGV[1] .. '|' .. version .. '|' .. ARGV[10])
redis.call('HSET', KEYS[1], 'version', version)
redis.call('XADD', KEYS[8], 'MAXLEN', '~', ARGV[13], '*', 'd', ARGV[12], 't', now)
return {'done', now}
