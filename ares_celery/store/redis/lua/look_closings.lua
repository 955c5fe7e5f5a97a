-- Looks which limits of a shard are closed, and by whom; faults that are healed close none from now on.
-- KEYS[1] closings  hash  <limit>|<agent>|<fault>: until when that closes it; |<agent>|<fault>: the fault was healed, and
--                         closes nothing any more
-- ARGV[1] microseconds for which that is remembered
-- ARGV[2+] fields that say that a fault was healed
-- Reply: for each that is closed now its field and until when.

local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
for i = 2, #ARGV do
  redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', now + tonumber(ARGV[1])))
end
if #ARGV > 1 then
  redis.call('PEXPIRE', KEYS[1], math.max(math.ceil(tonumber(ARGV[1]) / 1000), redis.call('PTTL', KEYS[1])))
end
local reply, listed = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #listed, 2 do
  if tonumber(listed[i + 1]) > now and string.sub(listed[i], 1, 1) ~= '|' then
    reply[#reply + 1] = listed[i]
    reply[#reply + 1] = listed[i + 1]
  end
end
return reply
