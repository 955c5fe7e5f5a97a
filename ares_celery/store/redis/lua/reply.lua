-- Consumes a message and stores its answer, of a stream as its final chunk too; ends the execution of its steps.
-- KEYS[1] agent    hash    the record
-- KEYS[2] inbox    stream  messages that were not consumed yet
-- KEYS[3] message  hash    what is known of the message id
-- KEYS[4] reply    stream  the answer, one entry, read by whoever waits
-- KEYS[5] chunks   stream  the pieces of a streamed answer, entry id <seq>-0
-- KEYS[6] handling hash    inbox entry to <times its handling began>|<fence that began it last>
-- KEYS[7] checkpoint hash  the execution of the message; absent, as are the next ones: no incarnation has begun one
-- KEYS[8] executions zset  ids of the agent's executions: +inf while unfinished, else when they are forgotten
-- KEYS[9] events   stream  the agent's events, entry id <version>-0
-- KEYS[10] feed    stream  pointers to new events
-- ARGV[1] fence, demanded
-- ARGV[2] entry of KEYS[2]
-- ARGV[3] answer, empty: nobody waits for one
-- ARGV[4] seconds for which answer, chunks and what is known are kept
-- ARGV[5] seq of the final chunk if no incarnation has stored more, 0: no stream
-- ARGV[6] agent id and message id, for the hint
-- ARGV[7] entry whose handling begins now, empty: none
-- ARGV[8] execution id; absent, as are the next ones: no incarnation has begun one
-- ARGV[9] seconds for which it is kept; absent, as are the next ones: this incarnation has not begun it
-- ARGV[10] most finished ones that stay listed
-- ARGV[11] event that tells its end
-- ARGV[12] type of the event
-- ARGV[13] envelope as executions of messages are made
-- ARGV[14] what becomes of that one, empty: it stays
-- ARGV[15] agent id
-- ARGV[16] most entries of the feed
-- ARGV[17+] fields of the execution to set: name, value
-- Reply: {'done', version of the event, empty: none}, {'repeated'}, {'left'} (an earlier incarnation has left the
--        execution unfinished: nothing was stored) or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
if #ARGV == 8 and redis.call('ZSCORE', KEYS[8], ARGV[8]) == 'inf'
  and #redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[2]) > 0 then
  return {'left'}
end
if redis.call('XDEL', KEYS[2], ARGV[2]) == 0 then
  return {'repeated'}
end
redis.call('HDEL', KEYS[6], ARGV[2])
if ARGV[7] ~= '' then
  local times, fence = string.match(redis.call('HGET', KEYS[6], ARGV[7]) or '0|', '^(%d+)|(.*)$')
  if fence ~= ARGV[1] then
    redis.call('HSET', KEYS[6], ARGV[7], string.format('%.0f', tonumber(times) + 1) .. '|' .. ARGV[1])
  end
end
if ARGV[3] ~= '' then
  redis.call('XADD', KEYS[4], '*', 'v', ARGV[3])
  redis.call('EXPIRE', KEYS[4], ARGV[4])
end
local held = redis.call('TYPE', KEYS[3])
if (type(held) == 'table' and held.ok or held) == 'hash' then
  local known = redis.call('HMGET', KEYS[3], 'seq', 'callers')
  redis.call('HSET', KEYS[3], 'over', '1')
  if ARGV[5] ~= '0' then
    local seq = string.format('%.0f', math.max(tonumber(known[1] or '0') + 1, tonumber(ARGV[5])))
    redis.call('XADD', KEYS[5], seq .. '-0', 'f', ARGV[3])
    redis.call('HSET', KEYS[3], 'seq', seq)
    redis.call('EXPIRE', KEYS[5], ARGV[4])
  end
  for channel in string.gmatch(known[2] or '', '%S+') do
    redis.call('PUBLISH', channel, ARGV[6])
  end
end
redis.call('EXPIRE', KEYS[3], ARGV[4])
local version = ''
if #ARGV > 8 then
  -- In this very write, as nobody would go on with it: the message is gone.
  local execution = redis.call('HMGET', KEYS[7], 'fence', 'revision', 'envelope')
  if execution[1] == ARGV[1] then
    local t = redis.call('TIME')
    local now = t[1] .. string.sub('00000' .. t[2], -6)
    local revision = string.format('%.0f', tonumber(execution[2]) + 1)
    redis.call('HSET', KEYS[7], 'revision', revision, 'op', 'answer', 'changed_at', now, unpack(ARGV, 17))
    redis.call('HDEL', KEYS[7], 'fence')
    if ARGV[14] ~= '' and execution[3] == ARGV[13] then
      redis.call('HSET', KEYS[7], 'envelope', ARGV[14])
    end
    redis.call('EXPIRE', KEYS[7], ARGV[9])
    local ends = string.format('%.0f', tonumber(now) + tonumber(ARGV[9]) * 1000000)
    redis.call('ZADD', KEYS[8], ends, ARGV[8])
    redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now)
    local unfinished = redis.call('ZCOUNT', KEYS[8], '+inf', '+inf')
    local surplus = redis.call('ZCARD', KEYS[8]) - unfinished - tonumber(ARGV[10])
    if surplus > 0 then
      redis.call('ZREMRANGEBYRANK', KEYS[8], 0, surplus - 1)
    end
    version = string.format('%.0f', tonumber(redis.call('HGET', KEYS[1], 'version') or '0') + 1)
    redis.call('XADD', KEYS[9], version, 'd', ARGV[11], 't', now)
    redis.call('XADD', KEYS[10], 'MAXLEN', '~', ARGV[16], '*', 'e', ARGV[15] .. '|' .. version .. '|' .. ARGV[12])
    redis.call('HSET', KEYS[1], 'version', version, 'executions', string.format('%.0f', unfinished))
  end
end
return {'done', version}
