-- Writes the next state of an experiment, unless another was written since.
--
-- KEYS[1]  hash: version, state
-- ARGV[1]  the version of the new state: one more than the one it was made from
-- ARGV[2]  the new state
-- Returns  1, or 0 when the version that is kept is another.

local held = redis.call('HGET', KEYS[1], 'version')
if held and tonumber(held) ~= tonumber(ARGV[1]) - 1 then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'state', ARGV[2])
return 1
