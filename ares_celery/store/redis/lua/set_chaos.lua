-- Allows faults for a time, or ends that time, in the shard that keeps the truth; a deadline sees to the copies.
-- KEYS[1] chaos      hash    until when faults are allowed for a time, 0: they are not; who and why
-- KEYS[2] op         string  the outcome of this operation id
-- KEYS[3] deadlines  zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[4] streams    hash    versions of streams that have no record
-- KEYS[5] events     stream  what is told of all this, entry id <version>-0
-- KEYS[6] feed       stream  pointers to new events
-- KEYS[7] audit      stream  who asked for what, and why
-- ARGV[1]  microseconds for which faults are allowed, where they are not for longer; 0: no longer
-- ARGV[2]  1: only if that time is over
-- ARGV[3]  actor
-- ARGV[4]  reason
-- ARGV[5]  deadline, a member of KEYS[3]
-- ARGV[6]  microseconds until it is due
-- ARGV[7]  stream id
-- ARGV[8]  stream id as the feed has it
-- ARGV[9]  event
-- ARGV[10] its type
-- ARGV[11] most entries of the feed
-- ARGV[12] audit entry, empty: nobody asked
-- ARGV[13] most entries of the audit stream
-- ARGV[14] seconds for which the outcome is remembered, 0: it is not
-- ARGV[15] kind of operation, for the outcome
-- ARGV[16] seconds that it is kept behind that time
-- Reply: {'done' | 'repeated', outcome} or {'same'}: it is as it should be; outcome is
--        epoch|revision|version|now|kind of operation|until before.

local remembered = ARGV[14] ~= '0' and redis.call('GET', KEYS[2])
if remembered then
  return {'repeated', remembered}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local chaos = redis.call('HMGET', KEYS[1], 'until', 'generation')
local before = chaos[1] or '0'
if ARGV[1] == '0' and (before == '0' or ARGV[2] == '1' and tonumber(before) > tonumber(now)) then
  return {'same'}
end
local ends = 0
if ARGV[1] ~= '0' then
  -- Who allows faults for a moment does not end those that somebody else has begun within an hour.
  ends = math.max(tonumber(before), tonumber(now) + tonumber(ARGV[1]))
end
local until_then = string.format('%.0f', ends)
-- Above every earlier one, also when these keys were gone in between, or the clock went back.
local generation = string.format('%.0f', math.max(tonumber(chaos[2] or '0') + 1, tonumber(now)))
redis.call('HSET', KEYS[1], 'until', until_then, 'generation', generation, 'actor', ARGV[3], 'reason', ARGV[4])
redis.call('EXPIRE', KEYS[1], math.ceil(math.max(0, ends - tonumber(now)) / 1000000) + tonumber(ARGV[16]))
redis.call('ZADD', KEYS[3], string.format('%.0f', tonumber(now) + tonumber(ARGV[6])), ARGV[5])
local version = string.format('%.0f', tonumber(redis.call('HGET', KEYS[4], ARGV[7]) or '0') + 1)
redis.call('HSET', KEYS[4], ARGV[7], version)
redis.call('XADD', KEYS[5], version .. '-0', 'd', ARGV[9], 't', now)
redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[11], '*', 'e', ARGV[8] .. '|' .. version .. '|' .. ARGV[10])
if ARGV[12] ~= '' then
  redis.call('XADD', KEYS[7], 'MAXLEN', '~', ARGV[13], '*', 'd', ARGV[12], 't', now)
end
local outcome = table.concat({'0', '0', version, now, ARGV[15], before}, '|')
if ARGV[14] ~= '0' then
  redis.call('SET', KEYS[2], outcome, 'EX', ARGV[14])
end
return {'done', outcome}
