-- Writes a page of a fork's history: the source's entries as they are, or the snapshot that it begins with.
-- KEYS[1] agent      hash    the fork's record
-- KEYS[2] events     stream  its events, entry id <version>-0
-- KEYS[3] snapshots  list    its snapshots
-- ARGV[1] epoch, demanded: that of this very fork
-- ARGV[2] mark, demanded: <version>|<copied>
-- ARGV[3] version, demanded: what is copied so far
-- ARGV[4] mark afterwards
-- ARGV[5] version afterwards
-- ARGV[6] oldest version that the source still has: older ones are dropped here too
-- ARGV[7] snapshot, empty: none in this page
-- ARGV[8] digest of the agent type whose state it is, empty: not known
-- ARGV[9] schema of the state
-- ARGV[10] <version>|<epoch> of a state that lies elsewhere and is not copied, empty: none
-- ARGV[11+] entries, each as its version and the number of its words, then these: names and values
-- Reply: {'done'}, {'over'} when it is no such fork (any more), {'moved', mark} or {'foreign', version} when events of
--        somebody else are there.

local record = redis.call('HMGET', KEYS[1], 'epoch', 'state', 'forking', 'version')
if record[1] ~= ARGV[1] or record[2] ~= 'registered' or not record[3] then
  return {'over'}
end
if record[3] ~= ARGV[2] then
  return {'moved', record[3]}
end
if (record[4] or '0') ~= ARGV[3] then
  return {'foreign', record[4]}
end

-- Nothing was written so far; from here on nothing is refused.

if ARGV[7] ~= '' and redis.call('LLEN', KEYS[3]) == 0 then
  redis.call('RPUSH', KEYS[3], ARGV[7])
  if ARGV[8] ~= '' then
    redis.call('HSET', KEYS[1], 'state_of', ARGV[8], 'state_schema', ARGV[9])
  end
end
if ARGV[10] ~= '' then
  -- An agent that has no other state must miss it: else it would begin from nothing.
  redis.call('HSET', KEYS[1], 'state_saved', ARGV[10])
end
local position = 11
while position <= #ARGV do
  local words = tonumber(ARGV[position + 1])
  redis.call('XADD', KEYS[2], ARGV[position] .. '-0', unpack(ARGV, position + 2, position + 1 + words))
  position = position + 2 + words
end
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[6])
redis.call('HSET', KEYS[1], 'forking', ARGV[4], 'version', ARGV[5])
return {'done'}
