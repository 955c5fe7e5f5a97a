-- Forgets a child that was deleted, unless its parent has spawned another one under its id meanwhile.
-- KEYS[1] children hash  child id to <number>|<key of the call that spawned it last>
-- ARGV[1] child id
-- ARGV[2] number of the child that was deleted
-- Reply: 1 when it is forgotten, else 0.

local known = redis.call('HGET', KEYS[1], ARGV[1])
if known and string.match(known, '^%d+') == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
