-- Moves damaged snapshots out of the way of later ones, where a person finds them; what is moved already stays there.
-- KEYS[1] agent      hash  the record
-- KEYS[2] snapshots  list  newest first
-- KEYS[3] damaged    list  newest first
-- ARGV[1]  fence, demanded
-- ARGV[2]  most damaged snapshots kept
-- ARGV[3] 1: they are copies from elsewhere, and not in KEYS[2]
-- ARGV[4+] damaged snapshots, oldest first
-- Reply: {'done', how many were moved} or {'fenced'}.

if redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then
  return {'fenced'}
end
local moved = 0
for i = 4, #ARGV do
  local is_new = redis.call('LREM', KEYS[2], 1, ARGV[i]) > 0
  if ARGV[3] == '1' then
    is_new = redis.call('LINDEX', KEYS[3], 0) ~= ARGV[i]
  end
  if is_new then
    redis.call('LPUSH', KEYS[3], ARGV[i])
    moved = moved + 1
  end
end
redis.call('LTRIM', KEYS[3], 0, tonumber(ARGV[2]) - 1)
return {'done', moved}
