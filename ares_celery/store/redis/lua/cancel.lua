-- Notes that the caller of a stream has left, and tells its host.
-- KEYS[1] agent   hash    the record
-- KEYS[2] message hash    what is known of the message id
-- ARGV[1] agent id
-- ARGV[2] message id
-- ARGV[3] what the channel of a host begins with
-- Reply: {'done'}, also when there is nothing to end.

local held = redis.call('TYPE', KEYS[2])
if (type(held) == 'table' and held.ok or held) ~= 'hash' then
  return {'done'}
end
local known = redis.call('HMGET', KEYS[2], 'created', 'kind', 'over', 'detached', 'left', 'entry')
local record = redis.call('HMGET', KEYS[1], 'created_at', 'owner_identity', 'fence')
if known[1] ~= record[1] or known[2] ~= 'stream' or known[3] == '1' or known[4] == '1' or known[5] == '1' then
  return {'done'}
end
redis.call('HSET', KEYS[2], 'left', '1')
if record[2] and record[3] then
  redis.call('PUBLISH', ARGV[3] .. record[2], table.concat({ARGV[1], 'left', record[3], known[6] or ''}, '\n'))
end
return {'done'}
