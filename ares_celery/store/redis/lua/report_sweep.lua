-- Notes that a sweep was finished now.
-- KEYS[1] last_sweep  string  <microseconds>|<identity>
-- ARGV[1] identity
-- Reply: 1.

local t = redis.call('TIME')
redis.call('SET', KEYS[1], t[1] .. string.sub('00000' .. t[2], -6) .. '|' .. ARGV[1])
return 1
