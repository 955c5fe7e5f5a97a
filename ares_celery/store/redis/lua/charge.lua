-- Adds to what an incarnation has spent, once for each charge; tells how its agent stands.
-- KEYS[1] agent  hash  the record
-- ARGV[1] fence, demanded
-- ARGV[2] op, empty: nothing is added
-- ARGV[3] tokens
-- ARGV[4] millionths of a dollar
-- ARGV[5] steps
-- Reply: {'done' | 'repeated', tokens, usd, steps spent by itself, the same by those below it, its limits; nil: none} or
--        {'fenced'}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'charge_op')
if record[1] ~= ARGV[1] then
  return {'fenced'}
end
local word = 'repeated'
if ARGV[2] ~= '' and record[2] ~= ARGV[2] then
  local t = redis.call('TIME')
  local now = t[1] .. string.sub('00000' .. t[2], -6)
  redis.call('HINCRBY', KEYS[1], 'spent_tokens', ARGV[3])
  redis.call('HINCRBY', KEYS[1], 'spent_usd', ARGV[4])
  redis.call('HINCRBY', KEYS[1], 'spent_steps', ARGV[5])
  redis.call('HSET', KEYS[1], 'charge_op', ARGV[2], 'last_progress', now)
  word = 'done'
end
local standing = redis.call('HMGET', KEYS[1], 'spent_tokens', 'spent_usd', 'spent_steps',
  'shared_tokens', 'shared_usd', 'shared_steps', 'budget_tokens', 'budget_usd', 'budget_steps')
return {word, unpack(standing)}
