-- Divides endpoints' places among the replicas that use them, as one step.
--
-- KEYS     an endpoint each, all with one hash tag: a hash, replica -> "second claim need"
-- ARGV[1]  the replica that asks
-- ARGV[2]  seconds after which one that has said nothing is not there
-- ARGV[3]  and on, three of each endpoint: its limit, what this replica has there, what it would
--          add if it could
-- Returns  two of each endpoint: places that this replica may use now, and replicas that use it
--
-- Each replica is sure of one place, so that it need not ask before it begins. The others go to
-- those who need them, equally where all need more, and what nobody needs is spread, to be there
-- at once. Whoever has more than its part keeps it until its requests end; nobody is granted what
-- another still claims, so that all together never have more than the limit (but the sure ones).

local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local me, believed = ARGV[1], tonumber(ARGV[2])
local answers = {}

local function there(key)
  -- Return the others' claims, and the demands past the sure place, of all; forget who is gone.
  local names, demand, taken = { me }, {}, 0
  local found = redis.call('HGETALL', key)
  for i = 1, #found, 2 do
    local name = found[i]
    local at, claim, need = string.match(found[i + 1], '^(%S+) (%d+) (%d+)$')
    if name ~= me then
      if at and math.abs(now - tonumber(at)) <= believed then
        names[#names + 1] = name
        demand[name] = math.max(0, tonumber(need) - 1)
        taken = taken + tonumber(claim)
      else
        redis.call('HDEL', key, name)
      end
    end
  end
  table.sort(names)
  return names, demand, taken
end

local function part_of(names, demand, left)
  -- Return what of `left` is this replica's, by max-min fairness; whole places, by name where they
  -- do not come out even.
  local got = {}
  for _, name in ipairs(names) do got[name] = 0 end
  while left > 0 do
    local open = {}
    for _, name in ipairs(names) do
      if demand[name] > got[name] then open[#open + 1] = name end
    end
    if #open == 0 then break end
    local each = math.floor(left / #open)
    for _, name in ipairs(open) do
      local more = math.min(math.max(each, 1), demand[name] - got[name], left)
      got[name], left = got[name] + more, left - more
    end
  end
  local each, odd = math.floor(left / #names), left % #names
  for i, name in ipairs(names) do
    if name == me then return got[me] + each + (i <= odd and 1 or 0) end
  end
end

for i, key in ipairs(KEYS) do
  local limit, holding = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local need = holding + tonumber(ARGV[3 * i + 2])
  local names, demand, taken = there(key)
  demand[me] = math.max(0, need - 1)
  local part = 1 + part_of(names, demand, math.max(0, limit - #names))
  local granted = math.max(1, math.min(part, limit - taken))
  local claim = math.max(granted, holding)
  redis.call('HSET', key, me, string.format('%.3f %d %d', now, claim, need))
  redis.call('EXPIRE', key, 60)
  answers[2 * i - 1], answers[2 * i] = granted, #names
end
return answers
