-- Says where a shard's feed begins and ends, and when that was so.
-- KEYS[1] feed  stream  pointers to new events
-- Reply: {now, id of the oldest pointer, id of the newest}; the ids are empty when there is none.

local t = redis.call('TIME')
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', '1')
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', '1')
return {
  t[1] .. string.sub('00000' .. t[2], -6),
  oldest[1] and oldest[1][1] or '',
  newest[1] and newest[1][1] or '',
}
