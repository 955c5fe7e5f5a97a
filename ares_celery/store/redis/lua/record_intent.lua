-- Notes that a step of a running execution is begun which must not be repeated; demands that it has recorded nothing.
-- KEYS[1] agent       hash    the record
-- KEYS[2] checkpoint  hash    the execution: state, envelope, one field for each recorded step
-- KEYS[3] events      stream  the agent's events, entry id <version>-0
-- KEYS[4] feed        stream  pointers to new events
-- KEYS[5] intents     hash    <execution>|<step> of steps that were begun and must not be repeated
-- ARGV[1] fence, demanded of the record and of the execution
-- ARGV[2] the step's field in KEYS[2]
-- ARGV[3] field of KEYS[5]
-- ARGV[4] the intent
-- ARGV[5] most records of an execution
-- ARGV[6] agent id
-- ARGV[7] event
-- ARGV[8] its type
-- ARGV[9] most entries of the feed
-- ARGV[10] version of the stream that the writer has seen: a smaller one here means that the store came back older
-- Reply: {'done', version, steps spent}, {'repeated', '', steps spent}, {'recorded', what is there, steps spent},
--        {'open'}, {'fenced'}, {'rolled back', version}, {'state', the execution's, or empty} or {'full'}.

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
local spent = record[3] or '0'
if stored[4] then
  return {'recorded', stored[4], spent}
end
local open = redis.call('HGET', KEYS[5], ARGV[3])
if open then
  if string.match(open, '^%d+|(.*)$') == ARGV[4] then
    return {'repeated', '', spent}
  end
  return {'open'}
end
if tonumber(stored[3] or '0') >= tonumber(ARGV[5]) then
  return {'full'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local version = string.format('%.0f', tonumber(record[2] or '0') + 1)
redis.call('HSET', KEYS[5], ARGV[3], now .. '|' .. ARGV[4])
redis.call('HINCRBY', KEYS[1], 'intents', 1)
redis.call('XADD', KEYS[3], version, 'd', ARGV[7], 't', now)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[9], '*', 'e', ARGV[6] .. '|' .. version .. '|' .. ARGV[8])
redis.call('HSET', KEYS[1], 'version', version, 'last_progress', now)
return {'done', version, spent}
