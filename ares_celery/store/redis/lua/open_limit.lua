-- Opens a limit that a fault has closed; where somebody else closes it as well, it stays closed for him.
-- KEYS[1] limit     hash  next (the next free turn), closed (by its provider, until when), faulted (by a fault)
-- KEYS[2] waiting   zset  who waits, by the microsecond of its turn
-- KEYS[3] closings  hash  <limit>|<agent>|<fault>: until when that closes it
-- ARGV[1] field of KEYS[3] that closes it no longer
-- ARGV[2] what the fields of the limit begin with
-- Reply: 1 when it opens earlier than it would have.

local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
redis.call('HDEL', KEYS[3], ARGV[1])
local known = redis.call('HMGET', KEYS[1], 'closed', 'faulted', 'next')
if not known[2] then
  return 0
end
local closed, faulted, free_turn = tonumber(known[1] or '0'), tonumber(known[2]), tonumber(known[3] or '0')
local before, others = math.max(closed, faulted), 0
local listed = redis.call('HGETALL', KEYS[3])
for i = 1, #listed, 2 do
  if string.sub(listed[i], 1, #ARGV[2]) == ARGV[2] then
    others = math.max(others, tonumber(listed[i + 1]))
  end
end
faulted = math.min(faulted, others)
redis.call('HSET', KEYS[1], 'faulted', string.format('%.0f', faulted))
local earlier = before - math.max(now, closed, faulted)
if earlier <= 0 then
  return 0
end
-- Turns behind the moment at which it was to open move along: those who wait come back as they would have then.
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], string.format('%.0f', before), '+inf')) do
  redis.call('ZINCRBY', KEYS[2], string.format('%.0f', -earlier), member)
end
if free_turn >= before then
  redis.call('HSET', KEYS[1], 'next', string.format('%.0f', free_turn - earlier))
end
return 1
