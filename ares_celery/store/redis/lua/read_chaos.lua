-- Reads until when faults are allowed for a time.
-- KEYS[1] chaos  hash  until when, generation, who and why
-- Reply: {now, until, generation, actor, reason}; until is 0 when they are not.

local t = redis.call('TIME')
local chaos = redis.call('HMGET', KEYS[1], 'until', 'generation', 'actor', 'reason')
return {t[1] .. string.sub('00000' .. t[2], -6), chaos[1] or '0', chaos[2] or '0', chaos[3] or '', chaos[4] or ''}
