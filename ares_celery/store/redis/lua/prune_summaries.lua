-- Drops the summaries that are too old; the newest stays, as it says where the next one begins.
-- KEYS[1] summaries  list  oldest first, each begins with <first version>|<last version>|<microsecond of its making>|
-- ARGV[1] microseconds that one is kept
-- Reply: how many were dropped.

local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
local dropped = 0
while redis.call('LLEN', KEYS[1]) > 1 do
  local made = string.match(redis.call('LINDEX', KEYS[1], 0), '^%d+|%d+|(%d+)|') or '0'
  if tonumber(made) + tonumber(ARGV[1]) > now then
    break
  end
  redis.call('LPOP', KEYS[1])
  dropped = dropped + 1
end
return dropped
