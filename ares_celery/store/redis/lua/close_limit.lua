-- Closes a limit for everybody for a time; one that is closed for longer stays so.
-- KEYS[1] limit  hash  closed (until when), closed_op
-- ARGV[1] op
-- ARGV[2] microseconds from now on
-- Reply: {'closed', microseconds until it opens}.

local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local known = redis.call('HMGET', KEYS[1], 'closed', 'closed_op')
local closed = tonumber(known[1] or '0')
if known[2] ~= ARGV[1] then
  closed = math.max(closed, now + tonumber(ARGV[2]))
  redis.call('HSET', KEYS[1], 'closed', string.format('%.0f', closed), 'closed_op', ARGV[1])
  local kept = math.max(math.floor((closed - now) / 1000) + 3600000, redis.call('PTTL', KEYS[1]))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', kept))
end
return {'closed', string.format('%.0f', math.max(0, closed - now))}
