-- Notes which limit of the fleet an incarnation waits for.
-- KEYS[1] agent  hash  the record
-- ARGV[1] fence, demanded
-- ARGV[2] name of the limit, empty: none
-- Reply: {'done'} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], 'limited')
else
  redis.call('HSET', KEYS[1], 'limited', ARGV[2])
end
return {'done'}
