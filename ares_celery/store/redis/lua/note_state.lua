-- Notes of which type and schema the newest state is, and which one is safe in a store of the user's own.
-- KEYS[1] agent  hash  the record
-- ARGV[1] fence, demanded
-- ARGV[2] digest of the agent type
-- ARGV[3] schema
-- ARGV[4] <version>|<epoch> of the state that is safe, empty: as before
-- Reply: {'done'} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
redis.call('HSET', KEYS[1], 'state_of', ARGV[2], 'state_schema', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'state_saved', ARGV[4])
end
return {'done'}
