-- Reads the faults of an agent that are active now.
-- KEYS[1] faults     hash  fault id: <kind>|<since>|<epoch>|<seen>|<used>|<draw>|<count>|<threshold>|<JSON>
-- KEYS[2] deadlines  zset  <kind>|<agent id>[|name] by microseconds; that of a fault says when it ends
-- KEYS[3] agent      hash  the record
-- ARGV[1] agent id
-- ARGV[2] 1: also those whose time is over and that nobody has ended yet
-- Reply: for each its id, when it ends, what the hash holds of it.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local epoch = redis.call('HGET', KEYS[3], 'epoch') or '0'
local reply, stored = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  local ends = redis.call('ZSCORE', KEYS[2], 'fault|' .. ARGV[1] .. '|' .. stored[i])
  -- An instance whose memory was corrupted is gone with its incarnation; one that is cut off may live on, somewhere.
  local of = string.match(stored[i + 1], '^memory|[^|]*|([^|]*)')
  if ends and (ARGV[2] == '1' or tonumber(ends) > tonumber(now) and (not of or of == epoch)) then
    reply[#reply + 1] = stored[i]
    reply[#reply + 1] = ends
    reply[#reply + 1] = stored[i + 1]
  end
end
return reply
