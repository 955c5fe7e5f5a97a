-- Asks people something for an execution of an incarnation, or finds what it has asked before.
-- KEYS[1] agent       hash    the record
-- KEYS[2] interrupts  hash    a|<name>: id, execution and step, beginning, asked at, expires at, payload; d|<name>: the decision
-- KEYS[3] checkpoint  hash    the execution that asks
-- KEYS[4] events      stream  the agent's events, entry id <version>-0
-- KEYS[5] feed        stream  pointers to new events
-- ARGV[1]  agent id
-- ARGV[2]  fence, demanded
-- ARGV[3]  name
-- ARGV[4]  id of the question, if it is a new one
-- ARGV[5]  execution and step that ask, each percent-encoded, with a slash between them
-- ARGV[6]  microseconds until it is too late to decide, 0: never
-- ARGV[7]  payload
-- ARGV[8]  event that tells of the question
-- ARGV[9]  its type
-- ARGV[10] id of an open question of another execution that is given up, empty: none
-- ARGV[11] event that tells of that
-- ARGV[12] its type
-- ARGV[13] most open questions of an agent
-- ARGV[14] most decided ones that are kept
-- ARGV[15] most entries of the feed
-- Reply: {'asked', id, asked at, expires at, now, decisions, version}, {'open', id, asked at, expires at, now, decisions},
--        {'decided', id, decision}, {'taken', execution and step, id}, {'full'} or {'fenced'}.

local record = redis.call('HMGET', KEYS[1], 'fence', 'version', 'decisions')
if record[1] ~= ARGV[2] then
  return {'fenced'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local birth = redis.call('HGET', KEYS[3], 'created_at') or ''
local held = redis.call('HMGET', KEYS[2], 'a|' .. ARGV[3], 'd|' .. ARGV[3])
local version = tonumber(record[2] or '0')
local function tell(data, kind)
  version = version + 1
  local number = string.format('%.0f', version)
  redis.call('XADD', KEYS[4], number .. '-0', 'd', data, 't', now)
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[15], '*', 'e', ARGV[1] .. '|' .. number .. '|' .. kind)
end

local gives_up = false
if held[1] then
  local id, execution, began, asked, expires = string.match(held[1], '^([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|')
  local decided = held[2] and string.match(held[2], '^([^|]*)|') == id
  if execution == ARGV[5] and began == birth then
    if decided then
      return {'decided', id, held[2]}
    end
    return {'open', id, asked, expires, now, record[3] or '0'}
  end
  if not decided and id ~= ARGV[10] then
    return {'taken', execution, id}
  end
  gives_up = not decided
end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[13]) then
  local open, decided = 0, {}
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if string.sub(field, 1, 2) == 'd|' then
      local at = string.match(redis.call('HGET', KEYS[2], field), '^[^|]*|([^|]*)|')
      decided[#decided + 1] = {tonumber(at), string.sub(field, 3)}
    else
      open = open + 1
    end
  end
  if open - #decided >= tonumber(ARGV[13]) and not held[1] then
    return {'full'}
  end
  if #decided > tonumber(ARGV[14]) then
    -- Half of them, so that this is rare.
    table.sort(decided, function(one, other) return one[1] < other[1] end)
    for i = 1, #decided - tonumber(ARGV[14]) / 2 do
      redis.call('HDEL', KEYS[2], 'a|' .. decided[i][2], 'd|' .. decided[i][2])
    end
  end
end

-- Nothing of the question was written so far; from here on nothing is refused.

if gives_up then
  tell(ARGV[11], ARGV[12])
end
local expires = '0'
if ARGV[6] ~= '0' then
  expires = string.format('%.0f', tonumber(now) + tonumber(ARGV[6]))
end
redis.call('HDEL', KEYS[2], 'd|' .. ARGV[3])
redis.call('HSET', KEYS[2], 'a|' .. ARGV[3],
  table.concat({ARGV[4], ARGV[5], birth, now, expires, ARGV[7]}, '|'))
tell(ARGV[8], ARGV[9])
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version), 'last_progress', now)
return {'asked', ARGV[4], now, expires, now, record[3] or '0', string.format('%.0f', version)}
