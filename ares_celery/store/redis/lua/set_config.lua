-- Replaces the settings of a namespace, if nobody has changed them meanwhile.
-- KEYS[1] meta    hash    schema, shards, time of creation, generation of the settings
-- KEYS[2] config  string  settings of the namespace as JSON
-- KEYS[3] op      string  the outcome of this operation id
-- KEYS[4] audit   stream  who asked for what, and why
-- ARGV[1] demanded generation
-- ARGV[2] settings
-- ARGV[3] seconds for which the outcome is remembered
-- ARGV[4] audit entry
-- ARGV[5] most entries of the audit stream
-- Reply: {'done' | 'repeated', generation} or {'conflict'}.

local remembered = redis.call('GET', KEYS[3])
if remembered then
  return {'repeated', remembered}
end
local found = redis.call('HMGET', KEYS[1], 'created_at', 'config_generation')
if not found[1] or (found[2] or '0') ~= ARGV[1] then
  return {'conflict'}
end
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
-- From the time, so that a namespace that was lost and made anew never looks like the old one; always above the last.
local generation = string.format('%.0f', math.max(tonumber(found[2] or '0') + 1, tonumber(now)))
redis.call('HSET', KEYS[1], 'config_generation', generation)
redis.call('SET', KEYS[2], ARGV[2])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[5], '*', 'd', ARGV[4], 't', now)
redis.call('SET', KEYS[3], generation, 'EX', ARGV[3])
return {'done', generation}
