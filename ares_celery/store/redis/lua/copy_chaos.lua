-- Copies to a shard until when faults are allowed, if what it has is older.
-- KEYS[1] chaos  hash  this shard's copy
-- ARGV[1] until when, 0: they are not
-- ARGV[2] generation
-- ARGV[3] seconds that it is kept behind that time
-- Reply: 1 when it was older.

if tonumber(redis.call('HGET', KEYS[1], 'generation') or '0') >= tonumber(ARGV[2]) then
  return 0
end
local t = redis.call('TIME')
local left = math.max(0, tonumber(ARGV[1]) / 1000000 - tonumber(t[1]))
redis.call('HSET', KEYS[1], 'until', ARGV[1], 'generation', ARGV[2])
redis.call('EXPIRE', KEYS[1], math.ceil(left) + tonumber(ARGV[3]))
return 1
