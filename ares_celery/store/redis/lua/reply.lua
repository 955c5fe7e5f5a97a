-- Consumes a message and stores its answer.
-- KEYS[1] agent    hash    the record
-- KEYS[2] inbox    stream  messages that were not consumed yet
-- KEYS[3] message  string  marks the message id as seen
-- KEYS[4] reply    stream  the answer, one entry, read by whoever waits
-- ARGV[1] fence, demanded
-- ARGV[2] entry of KEYS[2]
-- ARGV[3] answer, empty: nobody waits for one
-- ARGV[4] seconds for which answer and mark are kept
-- Reply: {'done'}, {'repeated'} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
if redis.call('XDEL', KEYS[2], ARGV[2]) == 0 then
  return {'repeated'}
end
redis.call('EXPIRE', KEYS[3], ARGV[4])
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[4], '*', 'v', ARGV[3])
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
return {'done'}
