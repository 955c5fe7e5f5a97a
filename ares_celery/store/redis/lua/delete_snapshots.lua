-- Forgets all good snapshots of an agent, and of which schema they were: any worker may rebuild its state from events.
-- KEYS[1] agent      hash  the record
-- KEYS[2] snapshots  list  newest first
-- Reply: {'done'}.

redis.call('UNLINK', KEYS[2])
redis.call('HDEL', KEYS[1], 'state_of', 'state_schema', 'state_saved')
return {'done'}
