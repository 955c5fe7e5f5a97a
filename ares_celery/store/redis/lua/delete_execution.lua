-- Forgets an execution that nobody holds, with all that its steps recorded.
-- KEYS[1] agent       hash  the record
-- KEYS[2] executions  zset  ids of the agent's executions: +inf while unfinished, else when they are forgotten
-- KEYS[3] checkpoint  hash  the execution
-- ARGV[1] execution id
-- ARGV[2] fence, demanded
-- ARGV[3] demanded revision
-- Reply: {'done'}, {'fenced'} or {'conflict'}; an execution that does not exist is done.

local record = redis.call('HMGET', KEYS[1], 'fence', 'created_at')
if record[1] ~= ARGV[2] then
  return {'fenced'}
end
local stored = redis.call('HMGET', KEYS[3], 'born', 'revision')
if stored[1] == record[2] and stored[2] ~= ARGV[3] then
  return {'conflict'}
end
redis.call('UNLINK', KEYS[3])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'executions', string.format('%.0f', redis.call('ZCOUNT', KEYS[2], '+inf', '+inf')))
return {'done'}
