-- Begins a session of an agent, or finds it begun; the oldest sessions beyond the limit go, with their messages.
-- KEYS[1] agent     hash  the record; without it there is nobody to remember anything
-- KEYS[2] sessions  zset  session ids by the microsecond they began
-- KEYS[3] memory    hash  <session>|n: its newest number, <session>|o: its oldest, <session>|m|<number>: a message
-- ARGV[1] session id
-- ARGV[2] most sessions
-- Reply: {'done'} or {'unknown'} when there is no such agent.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return {'unknown'}
end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[2], 'NX', t[1] .. string.sub('00000' .. t[2], -6), ARGV[1])
local gone = redis.call('ZRANGE', KEYS[2], 0, -1 - tonumber(ARGV[2]))
for i = 1, #gone do
  local bounds = redis.call('HMGET', KEYS[3], gone[i] .. '|o', gone[i] .. '|n')
  for number = tonumber(bounds[1] or '1'), tonumber(bounds[2] or '0') do
    local field = gone[i] .. '|m|' .. string.format('%.0f', number)
    local message = redis.call('HGET', KEYS[3], field)
    redis.call('HDEL', KEYS[3], field, gone[i] .. '|i|' .. string.match(message or '', '^[^|]*'))
  end
  redis.call('HDEL', KEYS[3], gone[i] .. '|o', gone[i] .. '|n')
  redis.call('ZREM', KEYS[2], gone[i])
end
return {'done'}
