-- Appends one event of an incarnation whose writer knows the newest version: the fast path, made of few words.
-- KEYS[1] agent   hash    the record
-- KEYS[2] events  stream  the agent's events, entry id <version>-0
-- KEYS[3] feed    stream  pointers to new events
-- ARGV[1] fence, demanded
-- ARGV[2] version, demanded
-- ARGV[3] version of the event; as an entry id it means <version>-0
-- ARGV[4] data
-- ARGV[5] pointer for the feed, <agent id>|<version>|<type>
-- ARGV[6] most entries of the feed
-- ARGV[7] this append for a repeat, <first version>|<last version>|<op>
-- Reply: now, or {'fenced'}, or {'moved'} when the version is another one: append_batch knows what to do then.

local record = redis.call('HMGET', KEYS[1], 'fence', 'version')
if record[1] ~= ARGV[1] then
  return {'fenced'}
end
if (record[2] or '0') ~= ARGV[2] then
  return {'moved'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
redis.call('XADD', KEYS[2], ARGV[3], 'd', ARGV[4], 't', now)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'e', ARGV[5])
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'append_op', ARGV[7], 'last_progress', now)
return now
