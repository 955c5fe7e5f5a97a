-- Renews the leases of one shard that still hold their fence, notes their steps; tells only what is new.
-- KEYS[1]  deadlines  zset  <kind>|<agent id>[|name] by microseconds
-- KEYS[2+] agent      hash  the record; one for each lease, in order
-- ARGV[1]  microseconds of a lease
-- ARGV[2+] for each lease: agent id, fence, last signal seen, step that it is in, empty: none, microseconds in it
-- Reply: {now, {number of the lease from 0, 'fenced'} or
--         {number of the lease from 0, 'asked', signal, request, desired, reason, active faults}, …}.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local until_then = string.format('%.0f', tonumber(now) + tonumber(ARGV[1]))
local reply, renewed = {now}, {}
for i = 2, #KEYS do
  local at = 5 * i - 8
  -- A key that holds no record any more has no fence either; the other leases go on.
  local record = redis.pcall('HMGET', KEYS[i], 'fence', 'signal', 'step', 'step_since')
  if record.err or record[1] ~= ARGV[at + 1] then
    reply[#reply + 1] = {i - 2, 'fenced'}
  else
    renewed[#renewed + 1] = until_then
    renewed[#renewed + 1] = 'lease|' .. ARGV[at]
    if ARGV[at + 3] ~= '' then
      local since = tonumber(now) - tonumber(ARGV[at + 4])
      -- The same step, but for what the way here took, was begun at the same moment.
      if record[3] ~= ARGV[at + 3] or math.abs(tonumber(record[4] or '0') - since) > 1000000 then
        redis.call('HSET', KEYS[i], 'step', ARGV[at + 3], 'step_since', string.format('%.0f', since))
      end
    elseif record[3] then
      redis.call('HDEL', KEYS[i], 'step', 'step_since')
    end
    if (record[2] or '0') ~= ARGV[at + 2] then
      local asked = redis.call('HMGET', KEYS[i], 'request', 'desired', 'request_reason', 'faults')
      reply[#reply + 1] =
        {i - 2, 'asked', record[2] or '0', asked[1] or '', asked[2] or '', asked[3] or '', asked[4] or '0'}
    end
  end
end
if #renewed > 0 then
  redis.call('ZADD', KEYS[1], unpack(renewed))
end
return reply
