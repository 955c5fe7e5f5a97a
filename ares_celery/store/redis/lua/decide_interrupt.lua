-- Decides what an agent asked people, once: the first decision stands; and brings the agent on.
-- KEYS[1] agent       hash    the record
-- KEYS[2] op          string  the outcome of this operation id
-- KEYS[3] interrupts  hash    a|<name>: id, execution and step, beginning, asked at, expires at, payload; d|<name>: the decision
-- KEYS[4] events      stream  the agent's events, entry id <version>-0
-- KEYS[5] feed        stream  pointers to new events
-- KEYS[6] deadlines   zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[7] audit       stream  who asked for what, and why
-- ARGV[1]  agent id
-- ARGV[2]  name
-- ARGV[3]  id of the question, demanded
-- ARGV[4]  the decision as it is kept, behind id and time
-- ARGV[5]  event that tells of it
-- ARGV[6]  its type
-- ARGV[7]  deadline that brings on an agent without a slot
-- ARGV[8]  audit entry
-- ARGV[9]  most entries of the audit stream
-- ARGV[10] most entries of the feed
-- ARGV[11] seconds for which the outcome is remembered
-- ARGV[12] kind of operation, for the outcome
-- ARGV[13] what the channel of a host begins with
-- Reply: {'done', outcome, score of the deadline or empty}, {'repeated', outcome}, {'missing'}, {'changed'} (another
--        question, or none), {'decided'} or {'late'}; outcome is epoch|revision|version|now|kind of operation.

local remembered = redis.call('GET', KEYS[2])
if remembered then
  return {'repeated', remembered}
end
local record = redis.call('HMGET', KEYS[1], 'state', 'epoch', 'revision', 'version', 'owner_identity', 'fence')
if not record[1] then
  return {'missing'}
end
local held = redis.call('HMGET', KEYS[3], 'a|' .. ARGV[2], 'd|' .. ARGV[2])
local id, execution, began, asked, expires =
  string.match(held[1] or '', '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|')
if id ~= ARGV[3] then
  return {'changed'}
end
if held[2] and string.match(held[2], '^([^|]*)|') == id then
  return {'decided'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
if expires ~= '0' and tonumber(expires) <= tonumber(now) then
  return {'late'}
end

-- Nothing was written so far; from here on nothing is refused.

local function raised(number)
  return string.format('%.0f', tonumber(number or '0') + 1)
end
local version, revision = raised(record[4]), raised(record[3])
redis.call('HSET', KEYS[3], 'd|' .. ARGV[2], table.concat({id, now, ARGV[4]}, '|'), 'a|' .. ARGV[2],
  table.concat({id, execution, began, asked, expires, 'null'}, '|'))
redis.call('XADD', KEYS[4], version .. '-0', 'd', ARGV[5], 't', now)
redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[10], '*', 'e', ARGV[1] .. '|' .. version .. '|' .. ARGV[6])
-- A higher revision: whoever decides right now that the agent gives its slot back has to decide again.
redis.call('HSET', KEYS[1], 'version', version, 'revision', revision)
redis.call('HINCRBY', KEYS[1], 'decisions', 1)
redis.call('HINCRBY', KEYS[1], 'signal', 1)
local score = ''
if record[1] == 'waiting' then
  score = now
  redis.call('ZADD', KEYS[6], now, ARGV[7])
end
redis.call('XADD', KEYS[7], 'MAXLEN', '~', ARGV[9], '*', 'd', ARGV[8], 't', now)
local outcome = table.concat({record[2] or '0', revision, version, now, ARGV[12]}, '|')
redis.call('SET', KEYS[2], outcome, 'EX', ARGV[11])
if record[5] and record[6] then
  redis.call('PUBLISH', ARGV[13] .. record[5], ARGV[1])
end
return {'done', outcome, score}
