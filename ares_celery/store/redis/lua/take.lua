-- Reads what an incarnation has to handle next, and notes that the first of it begins.
-- KEYS[1] agent    hash    the record
-- KEYS[2] inbox    stream  messages that were not consumed yet
-- KEYS[3] handling hash    inbox entry to <times its handling began>|<fence that began it last>
-- ARGV[1] fence, demanded
-- ARGV[2] first entry, as XRANGE takes it
-- ARGV[3] most messages
-- ARGV[4] how many of them begin now
-- Reply: {'done', entries, how often each began before this} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
local found = redis.call('XRANGE', KEYS[2], ARGV[2], '+', 'COUNT', ARGV[3])
local began = {}
for i = 1, #found do
  local times, fence = string.match(redis.call('HGET', KEYS[3], found[i][1]) or '0|', '^(%d+)|(.*)$')
  times = tonumber(times)
  if fence == ARGV[1] then
    times = times - 1
  elseif i <= tonumber(ARGV[4]) then
    redis.call('HSET', KEYS[3], found[i][1], string.format('%.0f', times + 1) .. '|' .. ARGV[1])
  end
  began[i] = times
end
return {'done', found, began}
