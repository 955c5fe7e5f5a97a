-- Asks a limit that the whole fleet shares for a place and a call, or says when to ask again.
-- KEYS[1] limit    hash  interval, most, next (the next free turn), asked (turns that were spread), closed (by its provider,
--                        until when), faulted (by a fault, until when)
-- KEYS[2] holders  zset  who holds a place or waits, by the microsecond at which that is forgotten
-- KEYS[3] waiting  zset  who of them waits, by the microsecond of its turn
-- KEYS[4] passed   zset  calls that were let through, by the microsecond at which that is forgotten
-- ARGV[1] member: who asks, the same in a repeat
-- ARGV[2] place: a place and a call; call: a call of one that holds a place; look: only whether the limit is closed
-- ARGV[3] microseconds between two calls, 0: no rate
-- ARGV[4] places, 0: any number
-- ARGV[5] microseconds for which a place is kept without a word of its holder
-- ARGV[6] microseconds over which those are spread who waited while it was closed
-- Reply: {'in' | 'wait', microseconds to wait, 'closed' | 'rate' | 'places' | '', interval and places as they were asked for
--        before; nil: nobody did}.

local function text(number)
  return string.format('%.0f', number)
end

local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000000 + tonumber(t[2])
local member, kind = ARGV[1], ARGV[2]
local interval, most, lease = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local known = redis.call('HMGET', KEYS[1], 'interval', 'most', 'next', 'closed', 'asked', 'seen', 'faulted')
local free_turn, closed, asked = tonumber(known[3] or '0'), tonumber(known[4] or '0'), tonumber(known[5] or '0')
local faulted = tonumber(known[7] or '0')

-- The clock of the server went back: all that was planned in its time is moved along.
local back = tonumber(known[6] or '0') - now
if back > 0 then
  free_turn, closed, faulted = free_turn - back, closed - back, faulted - back
  for _, key in ipairs({KEYS[2], KEYS[3]}) do
    for _, one in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      redis.call('ZINCRBY', key, text(-back), one)
    end
  end
end

for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now))) do
  redis.call('ZREM', KEYS[2], gone)
  redis.call('ZREM', KEYS[3], gone)
end
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', text(now))
local opens = math.max(closed, faulted)

local turn = redis.call('ZSCORE', KEYS[3], member)
local word, wait, why = 'in', 0, ''

local function is_repeat()
  if kind == 'place' then
    return not turn and redis.call('ZSCORE', KEYS[2], member)
  end
  return kind == 'call' and redis.call('ZSCORE', KEYS[4], member)
end

-- The n-th of a sequence that fills 0 to 1 evenly however many come: 1/2, 1/4, 3/4, 1/8, 5/8, …
local function spread(n)
  local part, step = 0, 0.5
  while n > 0 do
    if n % 2 == 1 then
      part = part + step
    end
    n, step = math.floor(n / 2), step / 2
  end
  return part
end

if not is_repeat() then
  turn = turn and tonumber(turn)
  if not turn or turn < opens then
    turn = now
    if opens > now then
      asked = (asked + 1) % 65536
      turn = opens + math.floor(spread(asked) * tonumber(ARGV[6]))
    end
    if interval > 0 and kind ~= 'look' then
      local own = math.max(free_turn, now, opens)
      free_turn = own + interval
      turn = math.max(turn, own)
    end
  end
  if turn > now then
    -- Within a minute a waiter is to say that it is still there.
    word, wait, why = 'wait', math.min(turn - now, 60000000), opens > now and 'closed' or 'rate'
    -- A fault may be healed, and nobody tells those who wait.
    if faulted > math.max(closed, now) then
      wait = math.min(wait, 1000000)
    end
  elseif kind == 'place' and most > 0 then
    local free = most - (redis.call('ZCARD', KEYS[2]) - redis.call('ZCARD', KEYS[3]))
    local ahead = redis.call('ZCOUNT', KEYS[3], '-inf', '(' .. text(turn))
    if free <= ahead then
      -- Whoever is far from its turn asks less often.
      word, why = 'wait', 'places'
      wait = math.min(250000 * (1 + math.floor(ahead / most)), 2000000)
    end
  end
  if word == 'wait' then
    redis.call('ZADD', KEYS[2], text(now + wait + lease), member)
    redis.call('ZADD', KEYS[3], text(turn), member)
  else
    redis.call('ZREM', KEYS[3], member)
    if kind ~= 'place' then
      redis.call('ZREM', KEYS[2], member)
    end
    if kind == 'call' then
      redis.call('ZADD', KEYS[4], text(now + 60000000), member)
    end
  end
end
if word == 'in' and kind == 'place' then
  redis.call('ZADD', KEYS[2], text(now + lease), member)
end

redis.call('HSET', KEYS[1], 'interval', ARGV[3], 'most', ARGV[4], 'next', text(free_turn), 'closed', text(closed),
  'faulted', text(faulted), 'asked', text(asked), 'seen', text(now))
local kept = text(math.floor((math.max(free_turn, opens, now) - now + lease) / 1000) + 3600000)
for _, key in ipairs(KEYS) do
  redis.call('PEXPIRE', key, kept)
end
return {word, text(wait), why, known[1], known[2]}
