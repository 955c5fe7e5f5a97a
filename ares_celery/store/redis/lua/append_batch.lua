-- Appends events of an incarnation, all or none, above whatever the runtime has added meanwhile.
-- KEYS[1]  agent   hash    the record
-- KEYS[2]  events  stream  the agent's events, entry id <version>-0
-- KEYS[3]  feed    stream  pointers to new events
-- ARGV[1]  agent id
-- ARGV[2]  fence, demanded
-- ARGV[3]  last version that the writer has seen; a smaller one here means that the store came back older
-- ARGV[4]  op
-- ARGV[5]  most entries of the feed
-- ARGV[6+] for each event: data, type
-- Reply: {'done', now, first version}, {'repeated', the stored entries}, {'fenced'} or {'rolled back', version}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'version', 'append_op')
if record[1] ~= ARGV[2] then
  return {'fenced'}
end
local first, last, op = string.match(record[3] or '', '^(%d+)|(%d+)|(.*)$')
if op == ARGV[4] then
  return {'repeated', redis.call('XRANGE', KEYS[2], first, last)}
end
local version = tonumber(record[2] or '0')
if version < tonumber(ARGV[3]) then
  return {'rolled back', record[2] or '0'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
first = string.format('%.0f', version + 1)
for i = 6, #ARGV, 2 do
  version = version + 1
  local number = string.format('%.0f', version)
  redis.call('XADD', KEYS[2], number .. '-0', 'd', ARGV[i], 't', now)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. ARGV[i + 1])
end
last = string.format('%.0f', version)
redis.call('HSET', KEYS[1], 'version', last, 'append_op', first .. '|' .. last .. '|' .. ARGV[4], 'last_progress', now)
return {'done', now, first}
