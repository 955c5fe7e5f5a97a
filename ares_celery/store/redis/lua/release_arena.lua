-- Frees the arena, if this run holds it.
-- KEYS[1] arena  hash  owner, info, since and stop of the run
-- ARGV[1] owner, of this very run
-- Reply: 1 when it was freed, else 0.

if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
