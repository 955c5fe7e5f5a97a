-- Reads the messages of one session, oldest first.
-- KEYS[1] memory  hash  <session>|n: its newest number, <session>|o: its oldest, <session>|m|<number>: a message
-- ARGV[1] session id
-- Reply: the messages, each as <id>|<microsecond>|<message>.

local bounds = redis.call('HMGET', KEYS[1], ARGV[1] .. '|o', ARGV[1] .. '|n')
local found = {}
for number = tonumber(bounds[1] or '1'), tonumber(bounds[2] or '0') do
  found[#found + 1] = redis.call('HGET', KEYS[1], ARGV[1] .. '|m|' .. string.format('%.0f', number)) or nil
end
return found
