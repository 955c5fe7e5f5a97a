-- Closes a limit for everybody for a time; one that is closed for longer stays so.
-- KEYS[1] limit     hash  closed (by its provider, until when), faulted (by a fault, until when), closed_op
-- KEYS[2] closings  hash  <limit>|<agent>|<fault>: until when that closes it; |<agent>|<fault>: the fault was healed, and
--                         closes nothing any more
-- ARGV[1] op
-- ARGV[2] microseconds from now on
-- ARGV[3] field of KEYS[2]
-- ARGV[4] when the fault is over that closes it, empty: its provider does
-- ARGV[5] field of KEYS[2] that says that the fault was healed
-- Reply: {'closed', microseconds until it opens}.

local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local known = redis.call('HMGET', KEYS[1], 'closed', 'faulted', 'closed_op')
local closed, faulted = tonumber(known[1] or '0'), tonumber(known[2] or '0')
local function text(number)
  return string.format('%.0f', number)
end
local function keep(key, ends, more)
  redis.call('PEXPIRE', key, text(math.max(math.floor((ends - now) / 1000) + more, redis.call('PTTL', key))))
end
if known[3] ~= ARGV[1] then
  local ends = now + tonumber(ARGV[2])
  if ARGV[4] == '' then
    closed = math.max(closed, ends)
  else
    ends = redis.call('HEXISTS', KEYS[2], ARGV[5]) == 1 and 0 or math.min(ends, tonumber(ARGV[4]))
    faulted = math.max(faulted, ends)
  end
  redis.call('HSET', KEYS[1], 'closed', text(closed), 'faulted', text(faulted), 'closed_op', ARGV[1])
  keep(KEYS[1], math.max(closed, faulted), 3600000)
  local listed = redis.call('HGETALL', KEYS[2])
  for i = 1, #listed, 2 do
    if tonumber(listed[i + 1]) <= now then
      redis.call('HDEL', KEYS[2], listed[i])
    elseif listed[i] == ARGV[3] then
      ends = math.max(ends, tonumber(listed[i + 1]))
    end
  end
  if ends > now then
    redis.call('HSET', KEYS[2], ARGV[3], text(ends))
    keep(KEYS[2], ends, 1000)
  end
end
return {'closed', text(math.max(0, closed - now, faulted - now))}
