-- Looks for the answer to a message, and whether there may come one.
-- KEYS[1] agent   hash    the record
-- KEYS[2] message hash    what is known of the message id
-- KEYS[3] reply   stream  the answer, one entry
-- KEYS[4] rest    stream  marks that the agent came to rest, the last one
-- ARGV[1] channel on which the caller waits, empty: it looks itself
-- Reply: {'answer', stored answer}, {'wait', newest mark of KEYS[4]}, {'missing'} or {'state', state, cause, reason}.

local found = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)
if found[1] then
  return {'answer', found[1][2][2]}
end
local record = redis.call('HMGET', KEYS[1], 'state', 'cause', 'reason')
local state = record[1]
if not state then
  return {'missing'}
end
if state == 'registered' or state == 'stopped' or state == 'completed' or state == 'parked' then
  return {'state', state, record[2] or '', record[3] or ''}
end
local held = redis.call('TYPE', KEYS[2])
if ARGV[1] ~= '' and (type(held) == 'table' and held.ok or held) == 'hash' then
  local callers = redis.call('HGET', KEYS[2], 'callers') or ''
  if not string.find(callers, ARGV[1], 1, true) then
    redis.call('HSET', KEYS[2], 'callers', string.sub(ARGV[1] .. ' ' .. callers, 1, 1000))
  end
end
local mark = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
return {'wait', mark[1] and mark[1][1] or '0-0'}
