-- Makes or changes one execution of an incarnation; all or nothing.
-- KEYS[1]  agent       hash    the record
-- KEYS[2]  executions  zset    ids of the agent's executions: +inf while unfinished, else when they are forgotten
-- KEYS[3]  checkpoint  hash    the execution: state, envelope, one field for each recorded step
-- KEYS[4]  events      stream  the agent's events, entry id <version>-0
-- KEYS[5]  feed        stream  pointers to new events
-- ARGV[1]  agent id
-- ARGV[2]  execution id
-- ARGV[3]  fence, demanded
-- ARGV[4]  op
-- ARGV[5]  demanded revision, empty: it must not exist
-- ARGV[6]  seconds for which it is kept, empty: it is not finished
-- ARGV[7]  most unfinished executions of an agent
-- ARGV[8]  most finished ones that stay listed
-- ARGV[9]  most entries of the feed
-- ARGV[10+] lists, each as its length and its items: fields to set (name, value), fields to clear, events (data, type)
-- Reply: {'done', now, revision}, {'fenced'}, {'conflict'} or {'full'}; a repeat is a conflict, its op says which.

local record = redis.call('HMGET', KEYS[1], 'fence', 'created_at', 'version')
if record[1] ~= ARGV[3] then
  return {'fenced'}
end
local stored = redis.call('HMGET', KEYS[3], 'born', 'revision')
local exists = stored[1] == record[2]
local revision = exists and stored[2] or ''
if revision ~= ARGV[5] then
  return {'conflict'}
end
if not exists and redis.call('ZCOUNT', KEYS[2], '+inf', '+inf') >= tonumber(ARGV[7]) then
  return {'full'}
end

-- Nothing was written so far; from here on nothing is refused.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local position = 9
local function take()
  position = position + 1
  return ARGV[position]
end
local function take_list(width)
  local items = {}
  for i = 1, tonumber(take()) * width do
    items[i] = take()
  end
  return items
end

if not exists then
  -- What an agent of the same id left behind that was deleted.
  redis.call('UNLINK', KEYS[3])
  redis.call('HSET', KEYS[3], 'born', record[2], 'created_at', now)
end
local changed = take_list(2)
local cleared = take_list(1)
local events = take_list(2)
revision = string.format('%.0f', tonumber(revision == '' and '0' or revision) + 1)
redis.call('HSET', KEYS[3], 'revision', revision, 'op', ARGV[4], 'changed_at', now, unpack(changed))
if #cleared > 0 then
  redis.call('HDEL', KEYS[3], unpack(cleared))
end

if ARGV[6] == '' then
  redis.call('ZADD', KEYS[2], '+inf', ARGV[2])
else
  redis.call('EXPIRE', KEYS[3], ARGV[6])
  redis.call('ZADD', KEYS[2], string.format('%.0f', tonumber(now) + tonumber(ARGV[6]) * 1000000), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
end
local unfinished = redis.call('ZCOUNT', KEYS[2], '+inf', '+inf')
local surplus = redis.call('ZCARD', KEYS[2]) - unfinished - tonumber(ARGV[8])
if surplus > 0 then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, surplus - 1)
end
redis.call('HSET', KEYS[1], 'executions', string.format('%.0f', unfinished), 'last_progress', now)

local version = tonumber(record[3] or '0')
for i = 1, #events, 2 do
  version = version + 1
  local number = string.format('%.0f', version)
  redis.call('XADD', KEYS[4], number .. '-0', 'd', events[i], 't', now)
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. events[i + 1])
end
if #events > 0 then
  redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
end
return {'done', now, revision}
