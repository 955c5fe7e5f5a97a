-- Notes that a sweep was finished now, and since when one has followed another without a break of a second.
-- KEYS[1] last_sweep  string  <microseconds>|<identity>|<microsecond since which there was no break>
-- ARGV[1] identity
-- Reply: 1.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local before, since = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+)|.*|(%d+)$')
local pause = tonumber(now) - tonumber(before or '0')
if not since or pause < 0 or pause > 1000000 then
  since = now
end
redis.call('SET', KEYS[1], now .. '|' .. ARGV[1] .. '|' .. since)
return 1
