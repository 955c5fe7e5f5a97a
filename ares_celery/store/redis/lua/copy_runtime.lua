-- Copies the runtime's state to a shard whose copy is older.
-- KEYS[1]  runtime  hash  this shard's copy of the runtime's state
-- ARGV[1]  generation
-- ARGV[2+] the whole state: name, value
-- Reply: 1 when it was older.

if tonumber(redis.call('HGET', KEYS[1], 'generation') or '0') >= tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return 1
