-- Reads which steps of the server's clock a shard has followed, and the clock itself.
-- KEYS[1] clock  hash  generation and offset: which steps this shard has followed
-- Reply: {generation, offset, now}.

local t = redis.call('TIME')
local clock = redis.call('HMGET', KEYS[1], 'generation', 'offset')
return {clock[1] or '0', clock[2] or '0', t[1] .. string.sub('00000' .. t[2], -6)}
