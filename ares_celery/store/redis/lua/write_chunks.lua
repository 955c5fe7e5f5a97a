-- Stores pieces of a streamed answer, those that are not stored yet, unless its caller has left.
-- KEYS[1] agent   hash    the record
-- KEYS[2] message hash    what is known of the message id
-- KEYS[3] chunks  stream  the pieces, entry id <seq>-0
-- ARGV[1] fence, demanded
-- ARGV[2] seq of the first piece
-- ARGV[3] seconds for which the pieces are kept
-- ARGV[4] most pieces that are kept
-- ARGV[5] most bytes that are kept
-- ARGV[6] microseconds after which a caller that does not read has left
-- ARGV[7] most microseconds between two calls of this script that count as such
-- ARGV[8] agent id and message id, for the hint
-- ARGV[9+] the pieces; none: only asks
-- Reply: {'done', last seq stored}, {'left'} (also behind the end), {'unknown'} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
local known = redis.call('HMGET', KEYS[2], 'kind', 'seq', 'size', 'detached', 'left', 'seen', 'callers', 'looked',
  'absent', 'over')
if not known[1] then
  return {'unknown'}
end
-- A write that was cut off may come late: nothing follows the end.
if known[10] == '1' then
  return {'left'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
if known[4] ~= '1' then
  if known[5] == '1' then
    return {'left'}
  end
  local seen, looked = tonumber(known[6] or now), tonumber(known[8] or '0')
  local absent = tonumber(now) - math.max(seen, looked)
  if looked > 0 then
    -- While the server was away nobody could read: such a time counts little, and who wrote did not come, either.
    absent = math.min(absent, tonumber(ARGV[7])) + (looked >= seen and tonumber(known[9] or '0') or 0)
  end
  if absent > tonumber(ARGV[6]) then
    redis.call('HSET', KEYS[2], 'left', '1')
    return {'left'}
  end
  redis.call('HSET', KEYS[2], 'looked', now, 'absent', string.format('%.0f', absent))
end
local last = tonumber(known[2] or '0')
local size = tonumber(known[3] or '0')
local before = last
for i = 9, #ARGV do
  local seq = tonumber(ARGV[2]) + i - 9
  -- What an incarnation before this one has stored stays as it is.
  if seq > last then
    redis.call('XADD', KEYS[3], string.format('%.0f', seq) .. '-0', 'd', ARGV[i])
    size = size + #ARGV[i]
    last = seq
  end
end
if last > before then
  local kept = redis.call('XLEN', KEYS[3])
  while kept > 1 and (kept > tonumber(ARGV[4]) or size > tonumber(ARGV[5])) do
    local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
    redis.call('XDEL', KEYS[3], oldest[1])
    size = size - #oldest[2][2]
    kept = kept - 1
  end
  if kept == 1 then
    size = #ARGV[#ARGV]
  end
  redis.call('EXPIRE', KEYS[3], ARGV[3])
  redis.call('HSET', KEYS[2], 'seq', string.format('%.0f', last), 'size', string.format('%.0f', size))
  for channel in string.gmatch(known[7] or '', '%S+') do
    redis.call('PUBLISH', channel, ARGV[8])
  end
end
return {'done', string.format('%.0f', last)}
