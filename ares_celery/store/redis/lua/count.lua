-- Raises counters of the namespace, once for each operation id.
-- KEYS[1]  counters  hash    the namespace's counters, the home shard's part
-- KEYS[2]  counted   string  this operation id has counted
-- ARGV[1]  seconds for which it is remembered
-- ARGV[2+] for each counter: name, by
-- Reply: 1, or 0 when it was counted before.

if not redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[1]) then
  return 0
end
for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
return 1
