-- Moves the state of the namespace's runtime in its home shard; a deadline sees to the copies.
-- KEYS[1]  runtime    hash  the truth about the runtime's state
-- KEYS[2]  deadlines  zset  <kind>|<agent id>[|name] by microseconds
-- KEYS[3]  audit      stream  who asked for what, and why
-- ARGV[1]  state
-- ARGV[2]  reason
-- ARGV[3]  actor
-- ARGV[4]  deadline, a member of KEYS[2]
-- ARGV[5]  microseconds until it is due
-- ARGV[6]  audit entry
-- ARGV[7]  most entries of the audit stream
-- ARGV[8+] states from which it may move
-- Reply: {now, runtime as flat field list}, moved or not.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local runtime = redis.call('HMGET', KEYS[1], 'state', 'generation')
local state = runtime[1] or 'new'
local allowed = false
for i = 8, #ARGV do
  allowed = allowed or ARGV[i] == state
end
if allowed and state ~= ARGV[1] then
  local generation = string.format('%.0f', tonumber(runtime[2] or '0') + 1)
  redis.call('HSET', KEYS[1], 'state', ARGV[1], 'generation', generation, 'since', now, 'reason', ARGV[2],
    'actor', ARGV[3])
  if ARGV[1] == 'running' then
    redis.call('HSET', KEYS[1], 'started_at', now)
    redis.call('HSETNX', KEYS[1], 'first_started', now)
  elseif ARGV[1] == 'stopped' then
    redis.call('HSET', KEYS[1], 'stopped_at', now)
  end
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[7], '*', 'd', ARGV[6], 't', now)
  redis.call('ZADD', KEYS[2], string.format('%.0f', tonumber(now) + tonumber(ARGV[5])), ARGV[4])
end
return {now, redis.call('HGETALL', KEYS[1])}
