-- Reads which processes reported lately, the earliest report first.
-- KEYS[1] process  zset  <identity>|<worker> by the microsecond of its last report
-- ARGV[1] seconds after which a silent process is forgotten
-- Reply: the members.

local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
local oldest = string.format('%.0f', now - tonumber(ARGV[1]) * 1000000)
return redis.call('ZRANGEBYSCORE', KEYS[1], oldest, '+inf')
