-- Draws whether a fault affects one call, and counts it; ends the fault at the last call of its count.
-- KEYS[1] agent      hash    the record
-- KEYS[2] op         string  the answer to this call
-- KEYS[3] faults     hash    fault id: <kind>|<since>|<epoch>|<seen>|<used>|<draw>|<count>|<threshold>|<JSON>
-- KEYS[4] disturbed  set     ids of the shard's agents that have faults
-- KEYS[5] deadlines  zset    <kind>|<agent id>[|name] by microseconds; that of a fault says when it ends
-- KEYS[6] events     stream  the agent's events, entry id <version>-0
-- KEYS[7] feed       stream  pointers to new events
-- ARGV[1] agent id
-- ARGV[2] fault id
-- ARGV[3] factor of the generator; its products stay below 2^53
-- ARGV[4] modulus of the generator
-- ARGV[5] event that tells of the end by count, empty: not known yet
-- ARGV[6] its type
-- ARGV[7] most entries of the feed
-- ARGV[8] seconds for which the answer is remembered
-- ARGV[9] what the channel of a host begins with
-- Reply: {'hit' | 'pass', used, 1: it is over by this call}, {'over'}, or {'last', value}: this call would be the last
--        one, so its event is needed; nothing was counted.

local remembered = redis.call('GET', KEYS[2])
if remembered then
  local word, used, over = string.match(remembered, '^([^|]*)|([^|]*)|([^|]*)$')
  return {word, used, over}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local member = 'fault|' .. ARGV[1] .. '|' .. ARGV[2]
local value, ends = redis.call('HGET', KEYS[3], ARGV[2]), redis.call('ZSCORE', KEYS[5], member)
if not value or not ends or tonumber(ends) <= tonumber(now) then
  return {'over'}
end
local head, seen, used, draw, count, threshold, rest = string.match(value,
  '^([^|]*|[^|]*|[^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
draw = tonumber(draw) * tonumber(ARGV[3]) % tonumber(ARGV[4])
local hit = draw < tonumber(threshold)
used = tonumber(used) + (hit and 1 or 0)
local over = hit and count ~= '0' and used >= tonumber(count)
if over and ARGV[5] == '' then
  return {'last', value}
end
local answer = {hit and 'hit' or 'pass', string.format('%.0f', used), over and '1' or '0'}
if over then
  local record = redis.call('HMGET', KEYS[1], 'version', 'fence', 'owner_identity')
  local version = string.format('%.0f', tonumber(record[1] or '0') + 1)
  redis.call('HDEL', KEYS[3], ARGV[2])
  redis.call('ZREM', KEYS[5], member)
  redis.call('XADD', KEYS[6], version .. '-0', 'd', ARGV[5], 't', now)
  redis.call('XADD', KEYS[7], 'MAXLEN', '~', ARGV[7], '*', 'e', ARGV[1] .. '|' .. version .. '|' .. ARGV[6])
  redis.call('HSET', KEYS[1], 'version', version)
  redis.call('HINCRBY', KEYS[1], 'signal', 1)
  local left = redis.call('HLEN', KEYS[3])
  if left == 0 then
    redis.call('SREM', KEYS[4], ARGV[1])
    redis.call('HDEL', KEYS[1], 'faults')
  else
    redis.call('HSET', KEYS[1], 'faults', left)
  end
  if record[2] and record[3] then
    redis.call('PUBLISH', ARGV[9] .. record[3], ARGV[1])
  end
else
  redis.call('HSET', KEYS[3], ARGV[2], table.concat({head, string.format('%.0f', tonumber(seen) + 1), answer[2],
    string.format('%.0f', draw), count, threshold, rest}, '|'))
end
redis.call('SET', KEYS[2], table.concat(answer, '|'), 'EX', ARGV[8])
return answer
