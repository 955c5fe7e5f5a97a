-- Looks whether people have decided what an incarnation asked; what nobody decided in time ends here.
-- KEYS[1] agent       hash    the record
-- KEYS[2] interrupts  hash    a|<name>: id, execution and step, beginning, asked at, expires at, payload; d|<name>: the decision
-- KEYS[3] events      stream  the agent's events, entry id <version>-0
-- KEYS[4] feed        stream  pointers to new events
-- ARGV[1] agent id
-- ARGV[2] fence, demanded
-- ARGV[3] name
-- ARGV[4] id of the question
-- ARGV[5] what is kept when it is too late, behind id and time
-- ARGV[6] event that tells of that
-- ARGV[7] its type
-- ARGV[8] most entries of the feed
-- Reply: {'open', id, asked at, expires at, now, decisions}, {'decided', id, decision}, {'gone'} or {'fenced'}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'version', 'decisions')
if record[1] ~= ARGV[2] then
  return {'fenced'}
end
local held = redis.call('HMGET', KEYS[2], 'a|' .. ARGV[3], 'd|' .. ARGV[3])
local id, execution, began, asked, expires =
  string.match(held[1] or '', '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|')
if id ~= ARGV[4] then
  return {'gone'}
end
if held[2] and string.match(held[2], '^([^|]*)|') == id then
  return {'decided', id, held[2]}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
if expires == '0' or tonumber(expires) > tonumber(now) then
  return {'open', id, asked, expires, now, record[3] or '0'}
end
local decision = table.concat({id, now, ARGV[5]}, '|')
local number = string.format('%.0f', tonumber(record[2] or '0') + 1)
redis.call('HSET', KEYS[2], 'd|' .. ARGV[3], decision, 'a|' .. ARGV[3],
  table.concat({id, execution, began, asked, expires, 'null'}, '|'))
redis.call('XADD', KEYS[3], number .. '-0', 'd', ARGV[6], 't', now)
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[8], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. ARGV[7])
redis.call('HSET', KEYS[1], 'version', number, 'last_progress', now)
return {'decided', id, decision}
