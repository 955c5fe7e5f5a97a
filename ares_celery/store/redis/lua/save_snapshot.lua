-- Stores a snapshot as the newest one and drops the oldest; one of the same version and epoch is replaced.
-- KEYS[1] agent      hash  the record
-- KEYS[2] snapshots  list  newest first, each begins with <version>|<epoch>|
-- KEYS[3] faults     hash  fault id: <kind>|<since>|<epoch>|<seen>|<used>|<draw>|<count>|<threshold>|<JSON>
-- KEYS[4] deadlines  zset  <kind>|<agent id>[|name] by microseconds; that of a fault says when it ends
-- ARGV[1] 1: the fence is demanded
-- ARGV[2] fence
-- ARGV[3] how the snapshot begins, <version>|<epoch>|
-- ARGV[4] the snapshot
-- ARGV[5] how many are kept
-- ARGV[6] digest of the agent type whose state it is, empty: not known
-- ARGV[7] schema of the state
-- ARGV[8] agent id
-- Reply: {'done'}, {'fenced'} or {'corrupt', id of the fault on the memory that it comes from}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'faults', 'epoch')
if ARGV[1] == '1' then
  if record[1] ~= ARGV[2] then
    return {'fenced'}
  end
  if record[2] then
    -- It would lie over the damage that recovery is to find.
    local t = redis.call('TIME')
    local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
    local stored = redis.call('HGETALL', KEYS[3])
    for i = 1, #stored, 2 do
      local of = string.match(stored[i + 1], '^memory|[^|]*|([^|]*)')
      local ends = of == record[3] and redis.call('ZSCORE', KEYS[4], 'fault|' .. ARGV[8] .. '|' .. stored[i])
      if ends and tonumber(ends) > now then
        return {'corrupt', stored[i]}
      end
    end
  end
end
local newest = redis.call('LINDEX', KEYS[2], 0)
if newest and string.sub(newest, 1, #ARGV[3]) == ARGV[3] then
  redis.call('LSET', KEYS[2], 0, ARGV[4])
else
  redis.call('LPUSH', KEYS[2], ARGV[4])
end
redis.call('LTRIM', KEYS[2], 0, tonumber(ARGV[5]) - 1)
if (redis.call('HGET', KEYS[1], 'state_saved') or '') .. '|' == ARGV[3] then
  -- A store of the user's own has an older state of the same event, and could not take this one.
  redis.call('HDEL', KEYS[1], 'state_saved')
end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[1], 'state_of', ARGV[6], 'state_schema', ARGV[7])
end
return {'done'}
