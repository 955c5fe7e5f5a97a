-- Asks the survival run that holds the arena to end; it notices when it next keeps the arena.
-- KEYS[1] arena  hash    owner, info, since and stop of the run
-- KEYS[2] audit  stream  who asked for what of the home shard, and why
-- ARGV[1] why it is to end
-- ARGV[2] entry of the audit stream
-- ARGV[3] most entries of the audit stream
-- Reply: {} where nobody holds it, else {owner, info, since, stop}.

local held = redis.call('HMGET', KEYS[1], 'owner', 'info', 'since', 'stop')
if not held[1] then
  return {}
end
if held[4] == '' then
  local t = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'stop', ARGV[1])
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'd', ARGV[2], 't', t[1] .. string.sub('00000' .. t[2], -6))
  held[4] = ARGV[1]
end
return {held[1], held[2], held[3], held[4]}
