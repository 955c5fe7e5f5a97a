-- Takes back that the handling of messages began: the incarnation ends in order and has not come to them.
-- KEYS[1] agent    hash    the record
-- KEYS[2] handling hash    inbox entry to <times its handling began>|<fence that began it last>
-- ARGV[1] fence, demanded
-- ARGV[2+] inbox entries
-- Reply: {'done'} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
for i = 2, #ARGV do
  local times, fence = string.match(redis.call('HGET', KEYS[2], ARGV[i]) or '0|', '^(%d+)|(.*)$')
  if fence == ARGV[1] then
    redis.call('HSET', KEYS[2], ARGV[i], string.format('%.0f', tonumber(times) - 1) .. '|')
  end
end
return {'done'}
