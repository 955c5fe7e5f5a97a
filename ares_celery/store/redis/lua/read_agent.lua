-- Reads an agent, its lease, its shard's runtime state and Redis TIME in one atomic step.
-- KEYS[1] agent      hash    the record
-- KEYS[2] deadlines  zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[3] runtime    hash    this shard's copy of the runtime's state
-- KEYS[4] op         string  the outcome of the operation asked about
-- ARGV[1] lease      member of KEYS[2]
-- Reply: {now, record as flat field list or why there is none, runtime state, generation, lease's end, outcome}; what is absent is nil.

local t = redis.call('TIME')
-- Whatever holds the key of one agent must not hide the others that are read with it.
local record = redis.pcall('HGETALL', KEYS[1])
local runtime = redis.call('HMGET', KEYS[3], 'state', 'generation')
return {
  t[1] .. string.sub('00000' .. t[2], -6),
  record.err or record,
  runtime[1],
  runtime[2],
  redis.call('ZSCORE', KEYS[2], ARGV[1]),
  redis.call('GET', KEYS[4]),
}
