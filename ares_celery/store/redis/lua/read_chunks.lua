-- Reads pieces of a streamed answer, and notes that somebody reads.
-- KEYS[1] agent   hash    the record
-- KEYS[2] message hash    what is known of the message id
-- KEYS[3] chunks  stream  the pieces, entry id <seq>-0
-- KEYS[4] rest    stream  marks that the agent came to rest, the last one
-- KEYS[5] reply   stream  the answer, one entry; without a final chunk: a worker of an older version has answered
-- ARGV[1] seq after which to read
-- ARGV[2] most pieces
-- ARGV[3] channel on which the caller waits, empty: it looks itself
-- ARGV[4] seconds for which pieces are kept behind the end
-- Reply: {'chunks', pieces}, {'gap', last seq stored}, {'over'}, {'wait', newest mark of KEYS[4]}, {'unknown'},
--        {'missing'} or {'state', state, cause, reason}.

local record = redis.call('HMGET', KEYS[1], 'state', 'cause', 'reason', 'created_at')
local state = record[1]
local held = redis.call('TYPE', KEYS[2])
local known = {}
if (type(held) == 'table' and held.ok or held) == 'hash' then
  known = redis.call('HMGET', KEYS[2], 'created', 'kind', 'seq', 'over', 'callers', 'left')
end
if not state then
  return {'missing'}
end
if known[1] ~= record[4] or known[2] ~= 'stream' then
  return {'unknown'}
end
local t = redis.call('TIME')
redis.call('HSET', KEYS[2], 'seen', t[1] .. string.sub('00000' .. t[2], -6))
local answer = known[4] ~= '1' and redis.call('XRANGE', KEYS[5], '-', '+', 'COUNT', 1)[1]
if answer then
  known[3], known[4] = string.format('%.0f', tonumber(known[3] or '0') + 1), '1'
  redis.call('XADD', KEYS[3], known[3] .. '-0', 'f', answer[2][2])
  redis.call('EXPIRE', KEYS[3], ARGV[4])
  redis.call('HSET', KEYS[2], 'seq', known[3], 'over', '1')
end
local found = redis.call('XRANGE', KEYS[3], '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2])
if #found > 0 then
  return {'chunks', found}
end
if tonumber(known[3] or '0') > tonumber(ARGV[1]) then
  return {'gap', known[3]}
end
if known[4] == '1' then
  return {'over'}
end
if state == 'registered' or state == 'stopped' or state == 'completed' or state == 'parked' then
  return {'state', state, record[2] or '', record[3] or ''}
end
if ARGV[3] ~= '' and not string.find(known[5] or '', ARGV[3], 1, true) then
  redis.call('HSET', KEYS[2], 'callers', string.sub(ARGV[3] .. ' ' .. (known[5] or ''), 1, 1000))
end
local mark = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)
return {'wait', mark[1] and mark[1][1] or '0-0'}
