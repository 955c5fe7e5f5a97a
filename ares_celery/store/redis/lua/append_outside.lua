-- Appends events from outside an incarnation, all or none, if the stream is where the writer thinks.
-- KEYS[1]  agent    hash    the record; its counter numbers the stream when it exists
-- KEYS[2]  streams  hash    versions of streams that have no record
-- KEYS[3]  events   stream  entry id <version>-0
-- KEYS[4]  feed     stream  pointers to new events
-- ARGV[1]  stream id
-- ARGV[2]  demanded version, empty: any
-- ARGV[3]  most entries of the feed
-- ARGV[4]  stream id as the feed has it
-- ARGV[5+] for each event: data, type
-- Reply: {'done', now, first version}, {'conflict', version} or {'forking', where its history comes from}.

local recorded = redis.call('EXISTS', KEYS[1]) == 1
local current
if recorded then
  local record = redis.call('HMGET', KEYS[1], 'version', 'forking', 'forked_from')
  if record[2] then
    -- The versions up to the fork's are those of its source.
    return {'forking', record[3]}
  end
  current = record[1] or '0'
else
  current = redis.call('HGET', KEYS[2], ARGV[1]) or '0'
end
if ARGV[2] ~= '' and current ~= ARGV[2] then
  return {'conflict', current}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local version = tonumber(current)
local first = string.format('%.0f', version + 1)
for i = 5, #ARGV, 2 do
  version = version + 1
  local number = string.format('%.0f', version)
  redis.call('XADD', KEYS[3], number .. '-0', 'd', ARGV[i], 't', now)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[3], '*', 'e', ARGV[4] .. '|' .. number .. '|' .. ARGV[i + 1])
end
if recorded then
  redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
else
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', version))
end
return {'done', now, first}
