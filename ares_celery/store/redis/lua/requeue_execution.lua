-- Gives back an execution that an incarnation held, ready for the next one, its checkpoint untouched.
-- KEYS[1]  agent       hash    the record
-- KEYS[2]  checkpoint  hash    the execution: state, envelope, one field for each recorded step
-- KEYS[3]  events      stream  the agent's events, entry id <version>-0
-- KEYS[4]  feed        stream  pointers to new events
-- ARGV[1]  agent id
-- ARGV[2]  fence, demanded: of the incarnation that runs now
-- ARGV[3]  op
-- ARGV[4]  demanded revision
-- ARGV[5]  state afterwards
-- ARGV[6]  most entries of the feed
-- ARGV[7+] for each event: data, type
-- Reply: {'done', now, revision}, {'fenced'} or {'conflict'}; a repeat is a conflict, its op says which.

local record = redis.call('HMGET', KEYS[1], 'fence', 'created_at', 'version')
if record[1] ~= ARGV[2] then
  return {'fenced'}
end
local stored = redis.call('HMGET', KEYS[2], 'born', 'revision')
if stored[1] ~= record[2] or stored[2] ~= ARGV[4] then
  return {'conflict'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local revision = string.format('%.0f', tonumber(stored[2]) + 1)
redis.call('HSET', KEYS[2], 'state', ARGV[5], 'revision', revision, 'op', ARGV[3], 'changed_at', now)
redis.call('HDEL', KEYS[2], 'fence')

local version = tonumber(record[3] or '0')
for i = 7, #ARGV, 2 do
  version = version + 1
  local number = string.format('%.0f', version)
  redis.call('XADD', KEYS[3], number .. '-0', 'd', ARGV[i], 't', now)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[6], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. ARGV[i + 1])
end
if #ARGV > 7 then
  redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
end
return {'done', now, revision}
