-- Reads the settings of a namespace with their generation, and what became of an earlier change.
-- KEYS[1] meta    hash    schema, shards, time of creation, generation of the settings
-- KEYS[2] config  string  settings of the namespace as JSON
-- KEYS[3] op      string  the outcome of an operation id
-- Reply: {generation, settings or nil, outcome or nil}.

return {
  redis.call('HGET', KEYS[1], 'config_generation') or '0',
  redis.call('GET', KEYS[2]),
  redis.call('GET', KEYS[3]),
}
