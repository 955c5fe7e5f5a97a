-- Notes that a process hosts agents or watches others, and forgets those that no longer say so.
-- KEYS[1] process  zset  <identity>|<worker> by the microsecond of its last report
-- ARGV[1] <identity>|<worker>
-- ARGV[2] seconds after which a silent process is forgotten
-- Reply: 1.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local oldest = string.format('%.0f', tonumber(now) - tonumber(ARGV[2]) * 1000000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. oldest)
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
