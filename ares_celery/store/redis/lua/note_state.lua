-- Notes of which type and schema the newest state is, and which one is safe in a store of the user's own.
-- KEYS[1] agent      hash  the record
-- KEYS[2] faults     hash  fault id: <kind>|<since>|<epoch>|<seen>|<used>|<draw>|<count>|<threshold>|<JSON>
-- KEYS[3] deadlines  zset  <kind>|<agent id>[|name] by microseconds; that of a fault says when it ends
-- ARGV[1] fence, demanded
-- ARGV[2] digest of the agent type
-- ARGV[3] schema
-- ARGV[4] <version>|<epoch> of the state that is safe, empty: one is about to be saved
-- ARGV[5] agent id
-- Reply: {'done'}, {'fenced'} or {'corrupt', id of the fault on the memory that it comes from}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'faults', 'epoch')
if record[1] ~= ARGV[1] then
  return {'fenced'}
end
if record[2] and ARGV[4] == '' then
  local t = redis.call('TIME')
  local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
  local stored = redis.call('HGETALL', KEYS[2])
  for i = 1, #stored, 2 do
    local of = string.match(stored[i + 1], '^memory|[^|]*|([^|]*)')
    local ends = of == record[3] and redis.call('ZSCORE', KEYS[3], 'fault|' .. ARGV[5] .. '|' .. stored[i])
    if ends and tonumber(ends) > now then
      return {'corrupt', stored[i]}
    end
  end
end
redis.call('HSET', KEYS[1], 'state_of', ARGV[2], 'state_schema', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[1], 'state_saved', ARGV[4])
end
return {'done'}
