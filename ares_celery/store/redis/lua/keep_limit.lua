-- Keeps places of a limit for those who still hold them.
-- KEYS[1] holders  zset  who holds a place or waits, by the microsecond at which that is forgotten
-- KEYS[2] waiting  zset  who of them waits
-- ARGV[1] microseconds for which a place is kept without a word of its holder
-- ARGV[2+] members
-- Reply: {'kept', how many of them were still there}.

-- One whose place was given away, or that has left meanwhile, does not come back.
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local until_then = string.format('%.0f', now + tonumber(ARGV[1]))
local kept = 0
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], until_then, ARGV[i])
    kept = kept + 1
  end
end
local longest = 3600000 + math.floor(tonumber(ARGV[1]) / 1000)
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, math.max(longest, redis.call('PTTL', key)))
end
return {'kept', kept}
