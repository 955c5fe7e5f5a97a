-- Takes or keeps a lease that one process of a namespace holds: the sweeper's, the postman's.
-- KEYS[1] elected  string  identity of the process that holds it
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
