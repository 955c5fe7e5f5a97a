-- Consumes a message that will not be handled to its end, keeps it as a dead letter, ends the execution of its steps.
-- KEYS[1]  agent    hash    the record
-- KEYS[2]  inbox    stream  messages that were not consumed yet
-- KEYS[3]  message  hash    what is known of the message id
-- KEYS[4]  reply    stream  the answer, one entry, read by whoever waits
-- KEYS[5]  chunks   stream  the pieces of a streamed answer, entry id <seq>-0
-- KEYS[6]  handling hash    inbox entry to <times its handling began>|<fence that began it last>
-- KEYS[7]  dead     stream  dead letters of the shard
-- KEYS[8]  counters hash    the namespace's counters, this shard's part
-- KEYS[9]  events   stream  the agent's events, entry id <version>-0
-- KEYS[10] feed     stream  pointers to new events
-- KEYS[11] checkpoint hash the execution of the message; absent, as is the next one: no incarnation has begun one
-- KEYS[12] executions zset ids of the agent's executions: +inf while unfinished, else when they are forgotten
-- ARGV[1]  fence, demanded
-- ARGV[2]  entry of KEYS[2]
-- ARGV[3]  what a waiting caller gets, empty: nobody waits
-- ARGV[4]  seconds for which that is kept
-- ARGV[5]  1: the message is a stream
-- ARGV[6]  agent id
-- ARGV[7]  message id
-- ARGV[8]  reason
-- ARGV[9]  the same in words
-- ARGV[10] most letters of the shard
-- ARGV[11] milliseconds for which a letter is kept
-- ARGV[12] event
-- ARGV[13] its type
-- ARGV[14] most entries of the feed
-- ARGV[15] execution id; absent, as are the next ones: no incarnation has begun one
-- ARGV[16] seconds for which it is kept; absent, as are the next ones: this incarnation has not begun it
-- ARGV[17] most finished ones that stay listed
-- ARGV[18] event that tells its end
-- ARGV[19] type of the event
-- ARGV[20] envelope as executions of messages are made
-- ARGV[21] what becomes of that one, empty: it stays
-- ARGV[22+] fields of the execution to set: name, value
-- Reply: {'done'}, {'repeated'}, {'left'} (an earlier incarnation has left the execution unfinished: nothing was stored)
--        or {'fenced'}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'version')
if record[1] ~= ARGV[1] then
  return {'fenced'}
end
local found = redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[2])
if #found == 0 then
  return {'repeated'}
end
if #ARGV == 15 and redis.call('ZSCORE', KEYS[12], ARGV[15]) == 'inf' then
  return {'left'}
end
local message = {}
for i = 1, #found[1][2], 2 do
  message[found[1][2][i]] = found[1][2][i + 1]
end
redis.call('XDEL', KEYS[2], ARGV[2])
redis.call('HDEL', KEYS[6], ARGV[2])
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local kind = message['k'] or (message['r'] == '1' and 'process' or 'send')
redis.call('XADD', KEYS[7], 'MAXLEN', ARGV[10], '*', 'a', ARGV[6], 'm', ARGV[7], 'k', kind, 'r', ARGV[8],
  'p', ARGV[9], 'b', message['b'], 's', message['t'], 't', now)
-- Not by XTRIM MINID: a Redis 6.2 removes younger ones too where the ages are far apart.
local oldest = string.format('%.0f', tonumber(now) / 1000 - tonumber(ARGV[11]))
for _, letter in ipairs(redis.call('XRANGE', KEYS[7], '-', '(' .. oldest, 'COUNT', 100)) do
  redis.call('XDEL', KEYS[7], letter[1])
end
redis.call('HINCRBY', KEYS[8], 'dead_letters_' .. ARGV[8], 1)
local version = string.format('%.0f', tonumber(record[2] or '0') + 1)
redis.call('XADD', KEYS[9], version .. '-0', 'd', ARGV[12], 't', now)
redis.call('XADD', KEYS[10], 'MAXLEN', '~', ARGV[14], '*', 'e', ARGV[6] .. '|' .. version .. '|' .. ARGV[13])
redis.call('HSET', KEYS[1], 'version', version)
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[4], '*', 'v', ARGV[3])
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
local held = redis.call('TYPE', KEYS[3])
if (type(held) == 'table' and held.ok or held) == 'hash' then
  local known = redis.call('HMGET', KEYS[3], 'seq', 'callers')
  redis.call('HSET', KEYS[3], 'over', '1')
  if ARGV[5] == '1' then
    local seq = string.format('%.0f', tonumber(known[1] or '0') + 1)
    redis.call('XADD', KEYS[5], seq .. '-0', 'f', ARGV[3])
    redis.call('HSET', KEYS[3], 'seq', seq)
    redis.call('EXPIRE', KEYS[5], ARGV[4])
  end
  for channel in string.gmatch(known[2] or '', '%S+') do
    redis.call('PUBLISH', channel, ARGV[6] .. '|' .. ARGV[7])
  end
end
redis.call('EXPIRE', KEYS[3], ARGV[4])
if #ARGV > 15 then
  -- In this very write, as nobody would go on with it: the message is gone.
  local execution = redis.call('HMGET', KEYS[11], 'fence', 'revision', 'envelope')
  if execution[1] == ARGV[1] then
    local revision = string.format('%.0f', tonumber(execution[2]) + 1)
    redis.call('HSET', KEYS[11], 'revision', revision, 'op', 'answer', 'changed_at', now, unpack(ARGV, 22))
    redis.call('HDEL', KEYS[11], 'fence')
    if ARGV[21] ~= '' and execution[3] == ARGV[20] then
      redis.call('HSET', KEYS[11], 'envelope', ARGV[21])
    end
    redis.call('EXPIRE', KEYS[11], ARGV[16])
    local ends = string.format('%.0f', tonumber(now) + tonumber(ARGV[16]) * 1000000)
    redis.call('ZADD', KEYS[12], ends, ARGV[15])
    redis.call('ZREMRANGEBYSCORE', KEYS[12], '-inf', now)
    local unfinished = redis.call('ZCOUNT', KEYS[12], '+inf', '+inf')
    local surplus = redis.call('ZCARD', KEYS[12]) - unfinished - tonumber(ARGV[17])
    if surplus > 0 then
      redis.call('ZREMRANGEBYRANK', KEYS[12], 0, surplus - 1)
    end
    version = string.format('%.0f', tonumber(version) + 1)
    redis.call('XADD', KEYS[9], version .. '-0', 'd', ARGV[18], 't', now)
    redis.call('XADD', KEYS[10], 'MAXLEN', '~', ARGV[14], '*', 'e', ARGV[6] .. '|' .. version .. '|' .. ARGV[19])
    redis.call('HSET', KEYS[1], 'version', version, 'executions', string.format('%.0f', unfinished))
  end
end
return {'done'}
