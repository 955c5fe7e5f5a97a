-- Writes a supervision group as it was decided, with its next step, or nothing.
-- KEYS[1] group      hash    the group
-- KEYS[2] op         string  the outcome of this operation id
-- KEYS[3] deadlines  zset    <kind>|<agent id>[|name] by microseconds
-- KEYS[4] groups     set     names of this shard's groups
-- KEYS[5] counters   hash    the namespace's counters, this shard's part
-- KEYS[6] audit      stream  who asked for what, and why
-- ARGV[1] name
-- ARGV[2] demanded revision, empty: the group must not exist
-- ARGV[3] the group afterwards, empty: it is deleted
-- ARGV[4] the group's own deadline, a member of KEYS[3]
-- ARGV[5] microseconds from now until it is due, empty: it stays as it is, -: there is none
-- ARGV[6] seconds for which the outcome is remembered
-- ARGV[7] audit entry, empty: none
-- ARGV[8] most entries of the audit stream
-- ARGV[9] kind of operation, for the outcome: an operation id is for one kind
-- ARGV[10+] counters: name, by
-- Reply: {'done' | 'repeated', outcome} or {'conflict'}; outcome is 0|revision|0|now|kind of operation, as of an agent.

local remembered = redis.call('GET', KEYS[2])
if remembered then
  return {'repeated', remembered}
end
local revision = redis.call('HGET', KEYS[1], 'revision') or ''
if revision ~= ARGV[2] then
  return {'conflict'}
end

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
-- One that is made again begins above every earlier one of its name.
revision = revision == '' and now or string.format('%.0f', tonumber(revision) + 1)
if ARGV[3] == '' then
  redis.call('DEL', KEYS[1])
  redis.call('SREM', KEYS[4], ARGV[1])
else
  redis.call('HSET', KEYS[1], 'revision', revision, 'group', ARGV[3])
  redis.call('SADD', KEYS[4], ARGV[1])
end
if ARGV[5] == '-' then
  redis.call('ZREM', KEYS[3], ARGV[4])
elseif ARGV[5] ~= '' then
  redis.call('ZADD', KEYS[3], string.format('%.0f', tonumber(now) + tonumber(ARGV[5])), ARGV[4])
end
for i = 10, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[5], ARGV[i], ARGV[i + 1])
end
if ARGV[7] ~= '' then
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[8], '*', 'd', ARGV[7], 't', now)
end
local outcome = '0|' .. revision .. '|0|' .. now .. '|' .. ARGV[9]
redis.call('SET', KEYS[2], outcome, 'EX', ARGV[6])
return {'done', outcome}
