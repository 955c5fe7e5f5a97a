-- Puts a message into an agent's inbox, once for each message id, and wakes its host.
-- KEYS[1] agent    hash    the record
-- KEYS[2] inbox    stream  messages that were not consumed yet
-- KEYS[3] message  hash    what is known of this message id; a string, written by older versions: the agent's creation
-- KEYS[4] reply    stream  the answer, one entry
-- KEYS[5] chunks   stream  the pieces of a streamed answer, entry id <seq>-0
-- KEYS[6] handling hash    inbox entry to <times its handling began>|<fence that began it last>
-- ARGV[1] agent id
-- ARGV[2] message id
-- ARGV[3] body
-- ARGV[4] kind: send, process or stream
-- ARGV[5] digest of the body
-- ARGV[6] most messages of an inbox
-- ARGV[7] seconds for which a repeat is recognised while the message waits
-- ARGV[8] what the channel of a host begins with
-- ARGV[9] 1: a stream that goes on without its caller
-- ARGV[10] channel on which the caller waits, empty: it looks itself
-- ARGV[11] most bytes of a message that the hint itself carries
-- Reply: {'done'}, {'repeated'}, {'reused', kind, 'body' | 'kind'}, {'missing'}, {'state', state, cause, reason} or
--        {'full', how many messages wait}. None but the first is as short as that: see connections.py, which waits for
--        more bytes than it has.

local record = redis.call('HMGET', KEYS[1], 'state', 'created_at', 'owner_identity', 'fence', 'cause', 'reason',
  'faults')
local state = record[1]
if not state then
  return {'missing'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local held = redis.call('TYPE', KEYS[3])
held = type(held) == 'table' and held.ok or held
-- An agent that was deleted and made anew has not seen the messages of its namesake.
if held == 'string' and redis.call('GET', KEYS[3]) == record[2] then
  return {'repeated'}
end
if held == 'hash' then
  local known = redis.call('HMGET', KEYS[3], 'created', 'kind', 'digest', 'callers')
  if known[1] == record[2] then
    if known[2] ~= ARGV[4] then
      return {'reused', known[2], 'kind'}
    elseif known[3] ~= ARGV[5] then
      return {'reused', known[2], 'body'}
    end
    redis.call('HSET', KEYS[3], 'seen', now)
    if ARGV[10] ~= '' and not string.find(known[4] or '', ARGV[10], 1, true) then
      redis.call('HSET', KEYS[3], 'callers', string.sub(ARGV[10] .. ' ' .. (known[4] or ''), 1, 1000))
    end
    return {'repeated'}
  end
end
if state == 'registered' or state == 'stopped' or state == 'completed' or state == 'parked' then
  return {'state', state, record[5] or '', record[6] or ''}
end
local waiting = redis.call('XLEN', KEYS[2])
if waiting >= tonumber(ARGV[6]) then
  return {'full', waiting}
end
local wants = ARGV[4] == 'send' and '0' or '1'
local entry = redis.call('XADD', KEYS[2], '*', 'm', ARGV[2], 'b', ARGV[3], 'r', wants, 't', now, 'k', ARGV[4])
redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
redis.call('HSET', KEYS[3], 'created', record[2], 'kind', ARGV[4], 'digest', ARGV[5], 'detached', ARGV[9],
  'callers', ARGV[10], 'seen', now, 'entry', entry)
redis.call('EXPIRE', KEYS[3], ARGV[7])
local signal = redis.call('HINCRBY', KEYS[1], 'signal', 1)
if record[3] and record[4] then
  local hint = ARGV[1]
  if waiting == 0 and #ARGV[3] <= tonumber(ARGV[11]) and (record[7] or '0') == '0' then
    -- The only message: its host need not read the inbox, and begins to handle it now. Where the agent has faults, it is
    -- to know of them before.
    redis.call('HSET', KEYS[6], entry, '1|' .. record[4])
    hint = table.concat({hint, 'mail', record[4], entry, ARGV[4], now, signal, #ARGV[2], ARGV[2] .. ARGV[3]}, '\n')
  end
  redis.call('PUBLISH', ARGV[8] .. record[3], hint)
end
return {'done'}
