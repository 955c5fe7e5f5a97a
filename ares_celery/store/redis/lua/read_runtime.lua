-- Reads the state of the namespace's runtime from its home shard.
-- KEYS[1] runtime  hash  state, generation, since, reason, actor, first_started, started_at, stopped_at
-- Reply: {now, runtime as flat field list}.

local t = redis.call('TIME')
return {t[1] .. string.sub('00000' .. t[2], -6), redis.call('HGETALL', KEYS[1])}
