-- Gives the fence of one epoch to its claimer, and loads what recovery needs; raises no epoch.
-- KEYS[1] agent      hash    the record
-- KEYS[2] runtime    hash    this shard's copy of the runtime's state
-- KEYS[3] deadlines  zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[4] hosts      zset    <identity>|<agent id>, score 0: who hosts whom
-- KEYS[5] events     stream  the agent's events, entry id <version>-0
-- KEYS[6] snapshots  list    newest first, each begins with <version>|
-- ARGV[1] agent id
-- ARGV[2] epoch, as a string
-- ARGV[3] fence, <epoch>|<token>
-- ARGV[4] identity of the claiming process
-- ARGV[5] its worker
-- ARGV[6] its task id
-- ARGV[7] microseconds of a lease
-- ARGV[8] microseconds until the recovery of a first start counts as hung
-- ARGV[9] most events of the reply
-- ARGV[10] microseconds until the recovery of a resurrection counts as hung
-- ARGV[11] microseconds until a claim that is refused for the schema is tried elsewhere, at first
-- ARGV[12+] for each agent type that the claimer knows: its digest, the newest schema of its state that it can load
-- Reply: {'claimed' | 'repeated', now, record as flat field list, newest snapshot or nil, events after it}
--        or {'refused', reason}.

local record = redis.call('HMGET', KEYS[1], 'epoch', 'fence', 'state', 'desired', 'claimable_after', 'owner_identity',
  'incarnation', 'attempt', 'revision', 'state_of', 'state_schema', 'nudges', 'held')
if not record[9] then
  return {'refused', 'deleted'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local repeated = record[2] == ARGV[3]

if not repeated then
  if (record[1] or '0') ~= ARGV[2] then
    return {'refused', 'epoch'}
  elseif record[2] then
    return {'refused', 'owned'}
  elseif record[13] then
    return {'refused', 'held'}
  elseif record[3] ~= 'starting' and record[3] ~= 'resurrecting' then
    return {'refused', 'not desired'}
  elseif record[4] ~= 'running' or redis.call('HGET', KEYS[2], 'state') ~= 'running' then
    return {'refused', 'not desired'}
  elseif tonumber(record[5] or '0') > tonumber(now) then
    return {'refused', 'early'}
  end
  for i = 12, #ARGV, 2 do
    if ARGV[i] == record[10] and tonumber(record[11] or '0') > tonumber(ARGV[i + 1]) then
      -- Newer code has written its state. Another worker may have that code: soon at first, later rarely.
      redis.call('HSET', KEYS[1], 'refused', 'schema|' .. ARGV[2])
      local nudge = redis.call('ZSCORE', KEYS[3], 'nudge|' .. ARGV[1])
      local soon = tonumber(now) + tonumber(ARGV[11])
      if nudge and tonumber(nudge) > soon and tonumber(record[12] or '0') < 20 then
        redis.call('ZADD', KEYS[3], string.format('%.0f', soon), 'nudge|' .. ARGV[1])
      end
      return {'refused', 'schema'}
    end
  end
  local function raised(number)
    return string.format('%.0f', tonumber(number or '0') + 1)
  end
  local function after(micros)
    return string.format('%.0f', tonumber(now) + tonumber(micros))
  end
  if record[6] then
    redis.call('ZREM', KEYS[4], record[6] .. '|' .. ARGV[1])
  end
  redis.call('ZADD', KEYS[4], 0, ARGV[4] .. '|' .. ARGV[1])
  redis.call('HDEL', KEYS[1], 'running_since', 'claimable_after', 'next_attempt_at', 'nudges', 'refused',
    'step', 'step_since', 'degraded', 'limited')
  redis.call('HSET', KEYS[1], 'fence', ARGV[3], 'owner_identity', ARGV[4], 'owner_worker', ARGV[5],
    'owner_task_id', ARGV[6], 'incarnation', raised(record[7]), 'attempt', raised(record[8]),
    'revision', raised(record[9]), 'claimed_at', now)
  redis.call('ZREM', KEYS[3], 'nudge|' .. ARGV[1], 'attempt|' .. ARGV[1])
  local limit = record[3] == 'resurrecting' and ARGV[10] or ARGV[8]
  redis.call('ZADD', KEYS[3], after(ARGV[7]), 'lease|' .. ARGV[1], after(limit), 'hang|' .. ARGV[1])
end

local snapshot = redis.call('LINDEX', KEYS[6], 0)
local covered = snapshot and string.match(snapshot, '^(%d+)|')
local first = '-'
-- Longer than any version: a damaged snapshot, which tells nothing.
if covered and #covered <= 16 then
  first = string.format('%.0f', tonumber(covered) + 1)
end
return {
  repeated and 'repeated' or 'claimed',
  now,
  redis.call('HGETALL', KEYS[1]),
  snapshot,
  redis.call('XRANGE', KEYS[5], first, '+', 'COUNT', ARGV[9]),
}
