-- Removes an agent and all that it owns, the record last.
-- KEYS[1]  agent       hash    the record
-- KEYS[2]  op          string  the outcome of this operation id
-- KEYS[3]  deadlines   zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[4]  hosts       zset    <identity>|<agent id>, score 0: who hosts whom
-- KEYS[5]  state       zset    index of the state it is in
-- KEYS[6]  events      stream  the agent's events
-- KEYS[7]  snapshots   list    the agent's snapshots
-- KEYS[8]  inbox       stream  the agent's messages
-- KEYS[9]  audit       stream  who asked for what, and why; it outlives the agent
-- KEYS[10] damaged     list    its damaged snapshots
-- KEYS[11] sessions    zset    its sessions
-- KEYS[12] memory      hash    their messages
-- KEYS[13] summaries   list    the summaries of the agent's events
-- KEYS[14] feed        stream  pointers to new events
-- KEYS[15] executions  zset    ids of its executions
-- KEYS[16+] checkpoint hash    one for each execution listed there
-- ARGV[1]  agent id
-- ARGV[2]  demanded revision
-- ARGV[3]  demanded epoch, as a string
-- ARGV[4]  seconds for which the outcome is remembered
-- ARGV[5]  audit entry, empty: none
-- ARGV[6]  most entries of the audit stream
-- ARGV[7]  most entries of the feed
-- ARGV[8]  deadline that tells the agent's group, empty: it has none
-- ARGV[9+] kinds of deadlines
-- Reply: {'done' | 'repeated' | 'conflict'}; an agent that does not exist is done.

if redis.call('EXISTS', KEYS[2]) == 1 then
  return {'repeated'}
end
local record = redis.call('HMGET', KEYS[1], 'revision', 'epoch', 'owner_identity')
if record[1] and (record[1] ~= ARGV[2] or (record[2] or '0') ~= ARGV[3]) then
  return {'conflict'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
for i = 9, #ARGV do
  redis.call('ZREM', KEYS[3], ARGV[i] .. '|' .. ARGV[1])
end
if ARGV[8] ~= '' and record[1] then
  redis.call('ZADD', KEYS[3], now, ARGV[8])
end
if record[3] then
  redis.call('ZREM', KEYS[4], record[3] .. '|' .. ARGV[1])
end
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('UNLINK', KEYS[6], KEYS[7], KEYS[8], KEYS[10], KEYS[11], KEYS[12], KEYS[13])
for i = 15, #KEYS do
  redis.call('UNLINK', KEYS[i])
end
redis.call('SET', KEYS[2], '0|0|0|' .. now, 'EX', ARGV[4])
if ARGV[5] ~= '' and record[1] then
  redis.call('XADD', KEYS[9], 'MAXLEN', '~', ARGV[6], '*', 'd', ARGV[5], 't', now)
end
if record[1] then
  -- Version 0: whoever follows the feed learns that the next versions of this id count from 1 again.
  redis.call('XADD', KEYS[14], 'MAXLEN', '~', ARGV[7], '*', 'e', ARGV[1] .. '|0|')
end
redis.call('DEL', KEYS[1])
return {'done'}
