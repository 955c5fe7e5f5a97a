-- Reads the deadlines of one shard that have passed, oldest first, and when the next one will.
-- KEYS[1] deadlines  zset  <kind>|<agent id>[|name] by microseconds
-- ARGV[1] most deadlines of the reply
-- Reply: {now, due as flat list of member and score, {next member, its score} or {}}.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
return {
  now,
  redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1]),
  redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1),
}
