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
-- KEYS[15] handling    hash    how often the handling of its messages began
-- KEYS[16] rest        stream  marks that the agent came to rest, the last one; ends by itself
-- KEYS[17] dead        stream  dead letters of the shard
-- KEYS[18] counters    hash    the namespace's counters, this shard's part
-- KEYS[19] disturbed   set     ids of the shard's agents that have faults
-- KEYS[20] intents     hash    steps that were begun and have no outcome
-- KEYS[21] settled     list    what people said of such steps
-- KEYS[22] executions  zset    ids of its executions
-- KEYS[23] budget      hash    what the members of its tree have told of their spending
-- KEYS[24] children    hash    the agents that it spawned, which go on
-- KEYS[25] interrupts  hash    what it asked people, and what they decided
-- KEYS[26] faults      hash    the faults that disturb it
-- KEYS[27+] checkpoint hash    one for each execution listed there
-- ARGV[1]  agent id
-- ARGV[2]  demanded revision
-- ARGV[3]  demanded epoch, as a string
-- ARGV[4]  seconds for which the outcome is remembered
-- ARGV[5]  audit entry, empty: none
-- ARGV[6]  most entries of the audit stream
-- ARGV[7]  most entries of the feed
-- ARGV[8]  deadline that tells the agent's group, empty: it has none
-- ARGV[9]  deadline that tells the agent's parent, empty: it has none
-- ARGV[10] channel on which it is told that the agent is gone
-- ARGV[11] most dead letters of the shard
-- ARGV[12] milliseconds for which a dead letter is kept
-- ARGV[13+] kinds of deadlines
-- Reply: {'done' | 'conflict'} or {'repeated', outcome}; an agent that does not exist is done.

local remembered = redis.call('GET', KEYS[2])
if remembered then
  return {'repeated', remembered}
end
local record = redis.call('HMGET', KEYS[1], 'revision', 'epoch', 'owner_identity', 'state')
if record[1] and (record[1] ~= ARGV[2] or (record[2] or '0') ~= ARGV[3]) then
  return {'conflict'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
for i = 13, #ARGV do
  redis.call('ZREM', KEYS[3], ARGV[i] .. '|' .. ARGV[1])
end
for i = 8, 9 do
  if ARGV[i] ~= '' and record[1] then
    redis.call('ZADD', KEYS[3], now, ARGV[i])
  end
end
if record[3] then
  redis.call('ZREM', KEYS[4], record[3] .. '|' .. ARGV[1])
end
redis.call('ZREM', KEYS[5], ARGV[1])
if record[1] then
  -- Messages that nobody will handle any more.
  local left = redis.call('XRANGE', KEYS[8], '-', '+')
  for i = 1, #left do
    local message = {}
    for j = 1, #left[i][2], 2 do
      message[left[i][2][j]] = left[i][2][j + 1]
    end
    local kind = message['k'] or (message['r'] == '1' and 'process' or 'send')
    redis.call('XADD', KEYS[17], 'MAXLEN', ARGV[11], '*', 'a', ARGV[1], 'm', message['m'] or '', 'k', kind,
      'r', 'deleted', 'p', 'the agent was deleted', 'b', message['b'] or 'null', 's', message['t'] or now, 't', now)
  end
  if #left > 0 then
    -- Not by XTRIM MINID: a Redis 6.2 removes younger ones too where the ages are far apart.
    local oldest = string.format('%.0f', tonumber(now) / 1000 - tonumber(ARGV[12]))
    for _, letter in ipairs(redis.call('XRANGE', KEYS[17], '-', '(' .. oldest, 'COUNT', 100)) do
      redis.call('XDEL', KEYS[17], letter[1])
    end
    redis.call('HINCRBY', KEYS[18], 'dead_letters_deleted', #left)
  end
  redis.call('PUBLISH', ARGV[10], ARGV[1])
end
redis.call('UNLINK', KEYS[16])
if record[4] == 'paused' or record[4] == 'waiting' then
  -- Somebody may wait for its answer, as it was meant to run again.
  redis.call('XADD', KEYS[16], '*', 's', '')
  redis.call('EXPIRE', KEYS[16], 60)
end
redis.call('UNLINK', KEYS[6], KEYS[7], KEYS[8], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[15])
for _, id in ipairs(redis.call('HKEYS', KEYS[26])) do
  redis.call('ZREM', KEYS[3], 'fault|' .. ARGV[1] .. '|' .. id)
end
redis.call('SREM', KEYS[19], ARGV[1])
for i = 20, #KEYS do
  redis.call('UNLINK', KEYS[i])
end
redis.call('SET', KEYS[2], '0|0|0|' .. now .. '|delete', 'EX', ARGV[4])
if ARGV[5] ~= '' and record[1] then
  redis.call('XADD', KEYS[9], 'MAXLEN', '~', ARGV[6], '*', 'd', ARGV[5], 't', now)
end
if record[1] then
  -- Version 0: whoever follows the feed learns that the next versions of this id count from 1 again.
  redis.call('XADD', KEYS[14], 'MAXLEN', '~', ARGV[7], '*', 'e', ARGV[1] .. '|0|')
end
redis.call('DEL', KEYS[1])
return {'done'}
