-- Stores a summary that begins where the newest one ends, and drops the oldest.
-- KEYS[1] agent      hash  the record
-- KEYS[2] streams    hash  versions of streams that have no record
-- KEYS[3] summaries  list  oldest first, each begins with <first version>|<last version>|<microsecond of its making>|
-- KEYS[4] counters   hash  the namespace's counters, this shard's part
-- ARGV[1] stream id
-- ARGV[2] last version that was summarised before, demanded
-- ARGV[3] first version
-- ARGV[4] last version
-- ARGV[5] the summary
-- ARGV[6] how many are kept, at least 1
-- ARGV[7] 1: a summariser of a user's failed
-- Reply: {'done', now}, {'conflict', last version that was summarised} or {'gone'} when the stream does not reach so far.

local newest = redis.call('LINDEX', KEYS[3], -1)
local summarised = newest and string.match(newest, '^%d+|(%d+)|') or '0'
if summarised ~= ARGV[2] then
  return {'conflict', summarised}
end
local version = redis.call('HGET', KEYS[1], 'version') or redis.call('HGET', KEYS[2], ARGV[1]) or '0'
if tonumber(version) < tonumber(ARGV[4]) then
  return {'gone'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
redis.call('RPUSH', KEYS[3], ARGV[3] .. '|' .. ARGV[4] .. '|' .. now .. '|' .. ARGV[5])
redis.call('LTRIM', KEYS[3], -tonumber(ARGV[6]), -1)
redis.call('HINCRBY', KEYS[4], 'summaries', 1)
if ARGV[7] == '1' then
  redis.call('HINCRBY', KEYS[4], 'summariser_failures', 1)
end
return {'done', now}
