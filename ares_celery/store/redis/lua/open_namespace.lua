-- Makes the namespace when it does not exist; reads how it was made.
-- KEYS[1] meta    hash    schema, shards, time of creation
-- KEYS[2] config  string  settings of the namespace as JSON
-- ARGV[1] schema
-- ARGV[2] shards
-- ARGV[3] settings
-- Reply: {1 when it was made now, meta as flat field list, settings}.

local made = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  local t = redis.call('TIME')
  local now = t[1] .. string.sub('00000' .. t[2], -6)
  redis.call('HSET', KEYS[1], 'schema', ARGV[1], 'shards', ARGV[2], 'created_at', now)
  redis.call('SET', KEYS[2], ARGV[3])
  made = 1
end
return {made, redis.call('HGETALL', KEYS[1]), redis.call('GET', KEYS[2])}
