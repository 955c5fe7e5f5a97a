-- Adds a message to a session, once for each message id; the oldest beyond the limit go.
-- KEYS[1] agent     hash  the record; without it there is nobody to remember anything
-- KEYS[2] sessions  zset  session ids by the microsecond they began
-- KEYS[3] memory    hash  <session>|n: its newest number, <session>|o: its oldest, <session>|m|<number>: <id>|<now>|<message>,
--                         <session>|i|<message id>: its number
-- ARGV[1] session id
-- ARGV[2] message id
-- ARGV[3] message
-- ARGV[4] most messages of a session
-- Reply: {'done', now}, {'repeated'}, or {'unknown', 'agent' | 'session'}.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'unknown', 'agent'}
end
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then
  return {'unknown', 'session'}
end
if redis.call('HEXISTS', KEYS[3], ARGV[1] .. '|i|' .. ARGV[2]) == 1 then
  return {'repeated'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local number = redis.call('HINCRBY', KEYS[3], ARGV[1] .. '|n', 1)
local text = string.format('%.0f', number)
redis.call('HSET', KEYS[3], ARGV[1] .. '|m|' .. text, ARGV[2] .. '|' .. now .. '|' .. ARGV[3],
  ARGV[1] .. '|i|' .. ARGV[2], text)
local oldest = tonumber(redis.call('HGET', KEYS[3], ARGV[1] .. '|o') or '1')
while number - oldest >= tonumber(ARGV[4]) do
  local field = ARGV[1] .. '|m|' .. string.format('%.0f', oldest)
  local message = redis.call('HGET', KEYS[3], field)
  redis.call('HDEL', KEYS[3], field, ARGV[1] .. '|i|' .. string.match(message or '', '^[^|]*'))
  oldest = oldest + 1
end
redis.call('HSET', KEYS[3], ARGV[1] .. '|o', string.format('%.0f', oldest))
return {'done', now}
