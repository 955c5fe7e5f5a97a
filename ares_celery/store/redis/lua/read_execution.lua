-- Reads one execution of an agent without its steps, with Redis TIME and the agent's fence; never refuses.
-- KEYS[1] agent       hash  the record
-- KEYS[2] checkpoint  hash  the execution: state, envelope, one field for each recorded step
-- ARGV[1+] names of the fields to read
-- Reply: {now, fence of the agent or empty, or nil without such an agent, the fields, or nil, or what Redis says of a key that holds no hash}.

local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local record = redis.call('HMGET', KEYS[1], 'created_at', 'fence')
-- A record without a fence is of an agent that nobody holds.
local fence = record[1] and (record[2] or '')
local born = redis.pcall('HGET', KEYS[2], 'born')
if type(born) == 'table' then
  return {now, fence, born.err}
end
if not born or born ~= record[1] then
  -- Of an agent of the same id that was deleted: this one has no such execution.
  return {now, fence}
end
return {now, fence, redis.call('HMGET', KEYS[2], unpack(ARGV))}
