-- Takes a member's totals into those of its tree, as far as they are news; tells how the agent at its top stands.
-- KEYS[1] agent   hash  the record of the agent at the top
-- KEYS[2] budget  hash  totals of each member by <agent id>|<created at>
-- ARGV[1] member, <agent id>|<created at>
-- ARGV[2] tokens that it has spent since it was made
-- ARGV[3] millionths of a dollar
-- ARGV[4] steps
-- Reply: {'done', tokens, usd, steps spent by itself, the same by those below it, its limits; nil: none} or {'gone'}.

-- A total only grows. So it does not matter how often it is told, in which order, or whether a telling was lost.
if redis.call('HEXISTS', KEYS[1], 'revision') == 0 then
  return {'gone'}
end
local told = redis.call('HGET', KEYS[2], ARGV[1]) or '0|0|0'
local known = {string.match(told, '^(%d+)|(%d+)|(%d+)$')}
local fields = {'shared_tokens', 'shared_usd', 'shared_steps'}
local is_news = false
for i = 1, 3 do
  local more = tonumber(ARGV[i + 1]) - tonumber(known[i] or '0')
  if more > 0 then
    redis.call('HINCRBY', KEYS[1], fields[i], string.format('%.0f', more))
    known[i] = ARGV[i + 1]
    is_news = true
  end
end
if is_news then
  redis.call('HSET', KEYS[2], ARGV[1], known[1] .. '|' .. known[2] .. '|' .. known[3])
end
local standing = redis.call('HMGET', KEYS[1], 'spent_tokens', 'spent_usd', 'spent_steps',
  'shared_tokens', 'shared_usd', 'shared_steps', 'budget_tokens', 'budget_usd', 'budget_steps')
return {'done', unpack(standing)}
