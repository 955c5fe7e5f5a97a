-- Puts the deadline off to the moment from which faults are allowed no longer, once every shard knows of it.
-- KEYS[1] chaos      hash  until when, generation
-- KEYS[2] deadlines  zset  <kind>|<agent id>[|name] by microseconds
-- ARGV[1] generation that was copied
-- ARGV[2] deadline, a member of KEYS[2]
-- Reply: 1 when it was put off, or dropped; 0 when somebody has changed it again.

local chaos = redis.call('HMGET', KEYS[1], 'until', 'generation')
if (chaos[2] or '0') ~= ARGV[1] then
  return 0
end
if (chaos[1] or '0') == '0' then
  redis.call('ZREM', KEYS[2], ARGV[2])
else
  redis.call('ZADD', KEYS[2], chaos[1], ARGV[2])
end
return 1
