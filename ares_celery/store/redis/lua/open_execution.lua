-- Reads one execution of an agent with all that its steps recorded, with Redis TIME and the agent's fence; never refuses.
-- KEYS[1] agent       hash  the record
-- KEYS[2] checkpoint  hash  the execution: state, envelope, one field for each recorded step
-- ARGV[1]  most fields of a hash whose steps are read along
-- ARGV[2+] names of the fields to read, the steps apart
-- Reply: {now, fence of the agent or empty, or nil without such an agent, the fields, or nil, or what Redis says of a key
--         that holds no hash, lengths of each step's id and record in order, these ids and records in one piece}; the last
--         two are absent where there are more: they are read by a plain command, which holds up the others far less.

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
local fields = redis.call('HMGET', KEYS[2], unpack(ARGV, 2))
if redis.call('HLEN', KEYS[2]) > tonumber(ARGV[1]) then
  return {now, fence, fields}
end
-- In one piece, as a reply of many parts costs whoever reads it more than it costs here.
local stored = redis.call('HGETALL', KEYS[2])
local lengths, parts = {}, {}
for i = 1, #stored, 2 do
  if string.sub(stored[i], 1, 5) == 'step:' then
    local name, data = string.sub(stored[i], 6), stored[i + 1]
    lengths[#lengths + 1] = #name
    lengths[#lengths + 1] = #data
    parts[#parts + 1] = name
    parts[#parts + 1] = data
  end
end
return {now, fence, fields, table.concat(lengths, ' '), table.concat(parts)}
