-- Drops the deadline of a move of the runtime's state, once every shard has a copy of that same move.
-- KEYS[1] runtime    hash  the truth about the runtime's state
-- KEYS[2] deadlines  zset  <kind>|<agent id>[|name] by microseconds
-- ARGV[1] generation that was copied
-- ARGV[2] deadline, a member of KEYS[2]
-- Reply: 1 when it was dropped; 0 when the state has moved again.

if (redis.call('HGET', KEYS[1], 'generation') or '0') ~= ARGV[1] then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[2])
return 1
