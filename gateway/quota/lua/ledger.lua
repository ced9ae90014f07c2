-- Adds one tenant's usage to its ledger, once for each batch name.
--
-- KEYS[1]  hash: day|model -> msgpack {requests, prompt, cached, output, nano}
-- KEYS[2]  marks that this batch has been added; forgotten after a day
-- ARGV[1]  msgpack {{field, {requests, prompt, cached, output, nano}}, ...}
-- Returns  1, or 0 when it had been added before.

if not redis.call('SET', KEYS[2], 1, 'NX', 'EX', 86400) then return 0 end
for _, entry in ipairs(cmsgpack.unpack(ARGV[1])) do
  local sums, held = entry[2], redis.call('HGET', KEYS[1], entry[1])
  if held then
    for i, before in ipairs(cmsgpack.unpack(held)) do sums[i] = sums[i] + before end
  end
  redis.call('HSET', KEYS[1], entry[1], cmsgpack.pack(sums))
end
return 1
