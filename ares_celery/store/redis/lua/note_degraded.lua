-- Notes what an incarnation has to do without.
-- KEYS[1] agent  hash  the record
-- ARGV[1] fence, demanded
-- ARGV[2] what for people, empty: nothing
-- Reply: {'done'} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], 'degraded')
else
  redis.call('HSET', KEYS[1], 'degraded', ARGV[2])
end
return {'done'}
