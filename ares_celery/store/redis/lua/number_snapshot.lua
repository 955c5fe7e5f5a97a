-- Gives a snapshot of the runtime its number and its time.
-- KEYS[1] views  string  how many there were
-- Reply: {number, now}.

local t = redis.call('TIME')
return {redis.call('INCR', KEYS[1]), t[1] .. string.sub('00000' .. t[2], -6)}
