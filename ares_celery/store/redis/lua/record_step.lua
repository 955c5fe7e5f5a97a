-- Records what a step of a running execution came to, once for each step: made of few words, as every step pays for it.
-- KEYS[1] agent       hash    the record
-- KEYS[2] checkpoint  hash    the execution: state, envelope, one field for each recorded step
-- KEYS[3] events      stream  the agent's events, entry id <version>-0
-- KEYS[4] feed        stream  pointers to new events
-- KEYS[5] intents     hash    <execution>|<step> of steps that were begun and must not be repeated
-- KEYS[6] handling    hash    inbox entry to <times its handling began>|<fence that began it last>
-- ARGV[1] fence, demanded of the record and of the execution
-- ARGV[2] the step's field in KEYS[2]
-- ARGV[3] what is recorded
-- ARGV[4] most records of an execution
-- ARGV[5] agent id
-- ARGV[6] event, empty: none
-- ARGV[7] its type
-- ARGV[8] most entries of the feed
-- ARGV[9] field of KEYS[5] that this closes, empty: none
-- ARGV[10] version of the stream that the writer has seen: a smaller one here means that the store came back older
-- ARGV[11] inbox entry of a message that was begun before and has come on now, empty: none
-- Reply: {'done', version or empty, steps spent, number of the record, now}, {'recorded', what is there, steps spent},
--        {'fenced'}, {'rolled back', version}, {'state', the execution's, or empty} or {'full'}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'version', 'spent_steps')
if record[1] ~= ARGV[1] then
  return {'fenced'}
end
if tonumber(record[2] or '0') < tonumber(ARGV[10]) then
  return {'rolled back', record[2] or '0'}
end
local stored = redis.call('HMGET', KEYS[2], 'fence', 'state', 'steps', ARGV[2])
if stored[1] ~= ARGV[1] or stored[2] ~= 'running' then
  return {'state', stored[2] or ''}
end
if stored[4] then
  return {'recorded', stored[4], record[3] or '0'}
end
local number = tonumber(stored[3] or '0') + 1
if number > tonumber(ARGV[4]) then
  return {'full'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local spent = string.format('%.0f', tonumber(record[3] or '0') + 1)
redis.call('HSET', KEYS[2], 'steps', number, ARGV[2], number .. '|' .. now .. '|' .. ARGV[3])
local version = ''
if ARGV[6] == '' then
  redis.call('HSET', KEYS[1], 'spent_steps', spent, 'last_progress', now)
else
  version = string.format('%.0f', tonumber(record[2] or '0') + 1)
  redis.call('XADD', KEYS[3], version, 'd', ARGV[6], 't', now)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[8], '*', 'e', ARGV[5] .. '|' .. version .. '|' .. ARGV[7])
  redis.call('HSET', KEYS[1], 'spent_steps', spent, 'last_progress', now, 'version', version)
end
if ARGV[9] ~= '' and redis.call('HDEL', KEYS[5], ARGV[9]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'intents', -1)
end
if ARGV[11] ~= '' and redis.call('HEXISTS', KEYS[6], ARGV[11]) == 1 then
  -- Earlier deaths did not keep the message from coming on: they no longer count.
  redis.call('HSET', KEYS[6], ARGV[11], '1|' .. ARGV[1])
end
return {'done', version, spent, number, now}
