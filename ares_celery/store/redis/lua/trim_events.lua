-- Removes the oldest events of a stream; of an agent's never one that recovery may need.
-- KEYS[1] agent      hash    the record
-- KEYS[2] events     stream  entry id <version>-0
-- KEYS[3] snapshots  list    newest first, each begins with <version>|
-- KEYS[4] counters   hash    the namespace's counters, this shard's part
-- ARGV[1] last version to be removed
-- Reply: how many events were removed.

local last = tonumber(ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 1 then
  -- Whatever its health, recovery may begin at the oldest kept snapshot; none kept: it begins at the first event.
  -- The second oldest is asked too: a damaged version must not lead behind it.
  local covered
  for i = 1, 2 do
    local snapshot = redis.call('LINDEX', KEYS[3], -i)
    if snapshot then
      local version = tonumber(string.match(snapshot, '^(%d+)|') or '0')
      covered = math.min(covered or version, version)
    end
  end
  last = math.min(last, covered or 0)
end
if last < 1 then
  return 0
end
local removed = redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f', last + 1))
if removed > 0 then
  redis.call('HINCRBY', KEYS[4], 'events_trimmed', removed)
end
return removed
