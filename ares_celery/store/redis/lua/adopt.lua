-- Notes that an incarnation spawns another agent, once for each call, and says whether it is asked to stop.
-- KEYS[1] agent    hash    the parent's record
-- KEYS[2] children hash    child id to <number>|<key of the call that spawned it last>
-- KEYS[3] events   stream  the parent's events, entry id <version>-0
-- KEYS[4] feed     stream  pointers to new events
-- ARGV[1] fence, demanded
-- ARGV[2] child id
-- ARGV[3] key of the call
-- ARGV[4] agent id of the parent
-- ARGV[5] data of the event that tells it
-- ARGV[6] its type
-- ARGV[7] most entries of the feed
-- ARGV[8] most children
-- Reply: {number of the child, times that the parent was stopped, desired}, {'fenced'} or {'full'}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'desired', 'stops', 'version')
if record[1] ~= ARGV[1] then
  return {'fenced'}
end
local known = redis.call('HGET', KEYS[2], ARGV[2])
if known then
  local number, key = string.match(known, '^(%d+)|(.*)$')
  if key == ARGV[3] then
    return {number, record[3] or '0', record[2]}
  end
elseif redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[8]) then
  return {'full'}
end
local number = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'children', 1))
redis.call('HSET', KEYS[2], ARGV[2], number .. '|' .. ARGV[3])
-- Whoever decided on the parent without this child has to decide again.
redis.call('HINCRBY', KEYS[1], 'revision', 1)
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local version = string.format('%.0f', tonumber(record[4] or '0') + 1)
redis.call('XADD', KEYS[3], version .. '-0', 'd', ARGV[5], 't', now)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[7], '*', 'e', ARGV[4] .. '|' .. version .. '|' .. ARGV[6])
redis.call('HSET', KEYS[1], 'version', version, 'last_progress', now)
return {number, record[3] or '0', record[2]}
