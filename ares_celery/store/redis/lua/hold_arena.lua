-- Takes or keeps the arena of a namespace for one survival run; another one is refused.
-- KEYS[1] arena  hash    owner, info, since and stop of the run; ends by its TTL when the run's process is gone
-- KEYS[2] audit  stream  who asked for what of the home shard, and why
-- ARGV[1] owner, of this very run
-- ARGV[2] what the run is, JSON
-- ARGV[3] milliseconds until it is free again unless it is kept
-- ARGV[4] entry of the audit stream, for the first time
-- ARGV[5] most entries of the audit stream
-- Reply: {1 or 0, owner, info, since, stop}: 1 while the arena is this run's; the rest is of whoever holds it.

local held = redis.call('HMGET', KEYS[1], 'owner', 'info', 'since', 'stop')
-- One that ends later than any can was taken before the server's clock went back; its holder may be dead.
if held[1] and held[1] ~= ARGV[1] and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[3]) then
  return {0, held[1], held[2], held[3], held[4]}
end
if held[1] ~= ARGV[1] then
  local t = redis.call('TIME')
  held = {ARGV[1], ARGV[2], t[1] .. string.sub('00000' .. t[2], -6), ''}
  redis.call('HSET', KEYS[1], 'owner', held[1], 'info', held[2], 'since', held[3], 'stop', held[4])
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[5], '*', 'd', ARGV[4], 't', held[3])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, held[1], held[2], held[3], held[4]}
