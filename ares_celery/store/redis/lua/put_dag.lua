-- Stores a DAG under its key, in place of the one that was there, and who asked for it.
-- KEYS[1] dags   hash    one field for each DAG, JSON
-- KEYS[2] audit  stream  who changed what of the namespace, and why
-- ARGV[1] key
-- ARGV[2] the DAG
-- ARGV[3] most DAGs of a namespace
-- ARGV[4] entry of the audit stream
-- ARGV[5] most entries of the audit stream
-- Reply: {'done'}, {'same'} or {'full'}.

local before = redis.call('HGET', KEYS[1], ARGV[1])
if before == ARGV[2] then
  return {'same'}
end
if not before and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  return {'full'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'd', ARGV[4], 't', now)
return {'done'}
