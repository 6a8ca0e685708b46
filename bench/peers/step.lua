-- The step in Redis: what a worker took from a stream is acknowledged, its outputs are added to another one, each under an id that is
-- deduplicated for an hour, a key is set and a marker is made, all in one script and so in one MULTI of the append-only file.
--
-- KEYS  input stream, output stream, key, marker
-- ARGV  group, seconds, n, n entry ids, value, then n times: transaction id, payload
-- Answers the number of outputs added; an error when the marker is there or an entry is not the group's to acknowledge.
if not redis.call('SET', KEYS[4], 1, 'NX', 'EX', ARGV[2]) then
  return redis.error_reply('ONCE the marker is there')
end
local n = tonumber(ARGV[3])
local ids = {}
for i = 1, n do ids[i] = ARGV[3 + i] end
if redis.call('XACK', KEYS[1], ARGV[1], unpack(ids)) ~= n then
  redis.call('DEL', KEYS[4])
  return redis.error_reply('ACK rejected')
end
redis.call('SET', KEYS[3], ARGV[4 + n])
local added = 0
for i = 5 + n, #ARGV, 2 do
  if redis.call('SET', KEYS[2] .. ':' .. ARGV[i], 1, 'NX', 'EX', ARGV[2]) then
    redis.call('XADD', KEYS[2], '*', 'id', ARGV[i], 'data', ARGV[i + 1])
    added = added + 1
  end
end
return added
