-- Tells how long ago the last sweep was finished.
-- KEYS[1] last_sweep  string  <microseconds>|<identity>|…
-- Reply: milliseconds, or -1 when there was none.

local last = redis.call('GET', KEYS[1])
if not last then
  return -1
end
local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
return math.max(0, math.floor((now - tonumber(string.match(last, '^%d+'))) / 1000))
