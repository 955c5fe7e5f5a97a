-- Takes or keeps the sweeper's lease.
-- KEYS[1] sweeper  string  identity of the process that sweeps
-- ARGV[1] identity
-- ARGV[2] milliseconds of the lease
-- Reply: 1 while this process holds it.

local holder = redis.call('GET', KEYS[1])
-- One that ends later than any can was taken before the server's clock went back; its holder may be dead.
if holder and holder ~= ARGV[1] and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[2]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
