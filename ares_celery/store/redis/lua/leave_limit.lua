-- Gives a place of a limit back, or leaves the queue for one.
-- KEYS[1] holders  zset  who holds a place or waits
-- KEYS[2] waiting  zset  who of them waits
-- ARGV[1] member: who leaves
-- Reply: {'left' | 'absent'}.

redis.call('ZREM', KEYS[2], ARGV[1])
return {redis.call('ZREM', KEYS[1], ARGV[1]) == 1 and 'left' or 'absent'}
