-- Writes one entry into an audit stream, about a change that happens outside of Redis.
-- KEYS[1] audit  stream  who asked for what, and why
-- ARGV[1] entry
-- ARGV[2] most entries of the stream
-- Reply: the entry's id.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
return redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'd', ARGV[1], 't', now)
