-- Moves what one shard holds in Redis time by a step of the server's clock, once for each step.
-- KEYS[1]  clock      hash  generation and offset: which steps this shard has followed
-- KEYS[2]  deadlines  zset  <kind>|<agent id>[|name] by microseconds
-- KEYS[3+] agent      hash  the shard's records; behind them, for the home shard alone: counters, last_sweep, process
-- ARGV[1]  generation, the number of steps afterwards
-- ARGV[2]  offset, the sum of their microseconds
-- ARGV[3]  microseconds of a lease
-- ARGV[4+] agent id of each record
-- Reply: {'now' | 'before' | 'unproven', generation, offset, now}; the numbers are the shard's own.

local t = redis.call('TIME')
local now = tonumber(t[1] .. string.sub('00000' .. t[2], -6))
local function text(number)
  return string.format('%.0f', number)
end

local clock = redis.call('HMGET', KEYS[1], 'generation', 'offset')
local generation, offset = clock[1] or '0', clock[2] or '0'
if tonumber(generation) >= tonumber(ARGV[1]) then
  return {'before', generation, offset, text(now)}
end
local step = tonumber(ARGV[2]) - tonumber(offset)
local agents = #ARGV - 3
local counters, last_sweep, process = KEYS[3 + agents], KEYS[4 + agents], KEYS[5 + agents]

local sweep = last_sweep and redis.call('GET', last_sweep)
local swept_at = sweep and tonumber(string.match(sweep, '^%d+'))
if swept_at then
  -- Sweeps without a break of a second, for more than five: no clock stepped meanwhile, whatever a frozen one thinks.
  local since = tonumber(string.match(sweep, '|(%d+)$') or '')
  if since and swept_at - since > 5000000 and now >= swept_at and now - swept_at <= 1000000 then
    return {'unproven', generation, offset, text(now)}
  end
end

local until_then = now + tonumber(ARGV[3])
local deadlines = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #deadlines, 2 do
  local due = tonumber(deadlines[i + 1]) + step
  local kind = string.match(deadlines[i], '^[^|]*')
  if kind == 'timer' or kind == 'approval' then
    -- A moment of the wall clock, as somebody named it: it does not move with the clock.
    due = tonumber(deadlines[i + 1])
  elseif kind == 'lease' then
    -- No lease is longer; and one that was renewed after the step must not be taken back by it.
    due = until_then
  end
  redis.call('ZADD', KEYS[2], text(due), deadlines[i])
end

-- What has happened was not later than now.
local function past(moment)
  return text(math.min(tonumber(moment) + step, now))
end
local facts = {'claimed_at', 'running_since', 'died_at'}
for i = 1, agents do
  local key, id = KEYS[2 + i], ARGV[3 + i]
  local record = redis.pcall('HMGET', key, 'claimable_after', 'next_attempt_at', 'charged_at', 'lost_together',
    unpack(facts))
  local changed = {}
  local function change(name, value)
    changed[#changed + 1] = name
    changed[#changed + 1] = value
  end
  if record[1] and tonumber(record[1]) > math.min(now, now - step) then
    -- Like the lease whose end it is.
    change('claimable_after', text(until_then))
    local attempt = redis.call('ZSCORE', KEYS[2], 'attempt|' .. id)
    if attempt and tonumber(attempt) < until_then then
      redis.call('ZADD', KEYS[2], text(until_then), 'attempt|' .. id)
    end
  end
  if record[2] then
    -- What is shown of that deadline.
    local attempt = redis.call('ZSCORE', KEYS[2], 'attempt|' .. id)
    change('next_attempt_at', text(attempt and tonumber(attempt) or tonumber(record[2]) + step))
  end
  for number, name in ipairs({'charged_at', 'lost_together'}) do
    if record[2 + number] then
      change(name, (string.gsub(record[2 + number], '%d+', past)))
    end
  end
  for number = 1, #facts do
    if record[4 + number] then
      change(facts[number], past(record[4 + number]))
    end
  end
  if #changed > 0 then
    -- Whoever decided on the record as it was has to decide again.
    redis.call('HSET', key, unpack(changed))
    redis.call('HINCRBY', key, 'revision', 1)
  end
end

if counters then
  redis.call('HINCRBY', counters, 'clock_steps', 1)
  if swept_at then
    redis.call('SET', last_sweep, past(swept_at) .. '|' .. string.match(sweep, '^%d+|([^|]*)'))
  end
  local processes = redis.call('ZRANGE', process, 0, -1, 'WITHSCORES')
  for i = 1, #processes, 2 do
    redis.call('ZADD', process, past(processes[i + 1]), processes[i])
  end
end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'offset', ARGV[2])
return {'now', ARGV[1], ARGV[2], text(now)}
