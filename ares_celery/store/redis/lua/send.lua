-- Puts a message into an agent's inbox, once for each message id, and wakes its host.
-- KEYS[1] agent    hash    the record
-- KEYS[2] inbox    stream  messages that were not consumed yet
-- KEYS[3] message  string  creation time of the agent that got this message id
-- KEYS[4] reply    stream  the answer, one entry
-- ARGV[1] agent id
-- ARGV[2] message id
-- ARGV[3] body
-- ARGV[4] 1: somebody waits for the answer
-- ARGV[5] most messages of an inbox
-- ARGV[6] seconds for which a repeat is recognised while the message waits
-- ARGV[7] what the channel of a host begins with
-- Reply: {'done'}, {'repeated'}, {'missing'}, {'state', state, cause, reason} or {'full'}.

local record = redis.call('HMGET', KEYS[1], 'state', 'created_at', 'owner_identity', 'fence', 'cause', 'reason')
local state = record[1]
if not state then
  return {'missing'}
end
-- An agent that was deleted and made anew has not seen the messages of its namesake.
if redis.call('GET', KEYS[3]) == record[2] then
  return {'repeated'}
end
if state == 'registered' or state == 'stopped' or state == 'completed' or state == 'parked' then
  return {'state', state, record[5] or '', record[6] or ''}
end
if redis.call('XLEN', KEYS[2]) >= tonumber(ARGV[5]) then
  return {'full'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
redis.call('XADD', KEYS[2], '*', 'm', ARGV[2], 'b', ARGV[3], 'r', ARGV[4], 't', now)
redis.call('SET', KEYS[3], record[2], 'EX', ARGV[6])
redis.call('DEL', KEYS[4])
redis.call('HINCRBY', KEYS[1], 'signal', 1)
if record[3] and record[4] then
  redis.call('PUBLISH', ARGV[7] .. record[3], ARGV[1])
end
return {'done'}
