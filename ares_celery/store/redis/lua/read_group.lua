-- Reads a supervision group and Redis TIME, with the steps of the clock that its shard has followed, in one atomic step.
-- KEYS[1] group  hash  the group
-- KEYS[2] clock  hash  generation and offset: which steps of the clock this shard has followed
-- Reply: {now, offset, revision, group}; the last two are nil when there is no such group.

local t = redis.call('TIME')
local group = redis.call('HMGET', KEYS[1], 'revision', 'group')
return {t[1] .. string.sub('00000' .. t[2], -6), redis.call('HGET', KEYS[2], 'offset') or '0', group[1], group[2]}
