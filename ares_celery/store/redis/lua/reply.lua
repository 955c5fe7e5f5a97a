-- Consumes a message and stores its answer, of a stream as its final chunk too.
-- KEYS[1] agent    hash    the record
-- KEYS[2] inbox    stream  messages that were not consumed yet
-- KEYS[3] message  hash    what is known of the message id
-- KEYS[4] reply    stream  the answer, one entry, read by whoever waits
-- KEYS[5] chunks   stream  the pieces of a streamed answer, entry id <seq>-0
-- KEYS[6] handling hash    inbox entry to <times its handling began>|<fence that began it last>
-- ARGV[1] fence, demanded
-- ARGV[2] entry of KEYS[2]
-- ARGV[3] answer, empty: nobody waits for one
-- ARGV[4] seconds for which answer, chunks and what is known are kept
-- ARGV[5] seq of the final chunk if no incarnation has stored more, 0: no stream
-- ARGV[6] agent id and message id, for the hint
-- ARGV[7] entry whose handling begins now, empty: none
-- Reply: {'done'}, {'repeated'} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
if redis.call('XDEL', KEYS[2], ARGV[2]) == 0 then
  return {'repeated'}
end
redis.call('HDEL', KEYS[6], ARGV[2])
if ARGV[7] ~= '' then
  local times, fence = string.match(redis.call('HGET', KEYS[6], ARGV[7]) or '0|', '^(%d+)|(.*)$')
  if fence ~= ARGV[1] then
    redis.call('HSET', KEYS[6], ARGV[7], string.format('%.0f', tonumber(times) + 1) .. '|' .. ARGV[1])
  end
end
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[4], '*', 'v', ARGV[3])
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
local held = redis.call('TYPE', KEYS[3])
if (type(held) == 'table' and held.ok or held) == 'hash' then
  local known = redis.call('HMGET', KEYS[3], 'seq', 'callers')
  redis.call('HSET', KEYS[3], 'over', '1')
  if ARGV[5] ~= '0' then
    local seq = string.format('%.0f', math.max(tonumber(known[1] or '0') + 1, tonumber(ARGV[5])))
    redis.call('XADD', KEYS[5], seq .. '-0', 'f', ARGV[3])
    redis.call('HSET', KEYS[3], 'seq', seq)
    redis.call('EXPIRE', KEYS[5], ARGV[4])
  end
  for channel in string.gmatch(known[2] or '', '%S+') do
    redis.call('PUBLISH', channel, ARGV[6])
  end
end
redis.call('EXPIRE', KEYS[3], ARGV[4])
return {'done'}
