-- Does what `store.py` says for one or more tenants, as one step.
--
-- KEYS     four a tenant, all with its name as their hash tag:
--          state   hash: s, the second last advanced to; rt and tt, requests and tokens of the
--                  sliding minute; r<i> and t<i>, their slots, i = second modulo 64;
--                  day, dt, dn, month, mt, mn: the calendar's periods, their tokens and money
--          leases  hash: lease -> msgpack {second, day, requests, tokens, nano, expired or nil};
--                  '+'name -> 1 for what was carried over
--          expiry  sorted set: lease -> when it expires, in seconds
--          gone    sorted set: expired leases and carried names -> since when, to be forgotten
-- ARGV[1]  msgpack {deadline, lease seconds, {{caps, day, month, operations}, ...}}. Past the
--          deadline (seconds; 0 is none) nothing is done: whoever asked has given up waiting.
-- ARGV[2]  the time to go by instead of the server's own, for tests.
-- Returns  msgpack {now in milliseconds, replies of each tenant, or nil when it came too late}.
--          Units: whole tokens, nano (billionths of the currency), seconds.

local WINDOW, SLOTS, FORGET, KEEP_STATE = 60, 64, 3600, 3456000
local call, pack, unpack_ = redis.call, cmsgpack.pack, cmsgpack.unpack

local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local now_ms = math.floor(now * 1000)
local asked = unpack_(ARGV[1])
local deadline, lease_s = asked[1], asked[2]
if deadline > 0 and now > deadline then
  return '\146' .. pack(now_ms) .. '\192'  -- an array of two, its second nil
end

local state, leases, expiry, gone  -- of the tenant in hand
local s, rt, tt, day, dt, dn, month, mt, mn, concurrent
local new_second
local r_now, t_now = 0, 0  -- of the slot of this second: not yet written

local function slot(second)
  return second % SLOTS
end

local function load_state(today, this_month)
  local f = call('HMGET', state, 's', 'rt', 'tt', 'day', 'dt', 'dn', 'month', 'mt', 'mn')
  s = tonumber(f[1] or 0)
  rt, tt = tonumber(f[2] or 0), tonumber(f[3] or 0)
  day, dt, dn = tonumber(f[4] or 0), tonumber(f[5] or 0), tonumber(f[6] or 0)
  month, mt, mn = tonumber(f[7] or 0), tonumber(f[8] or 0), tonumber(f[9] or 0)
  if today > day then day, dt, dn = today, 0, 0 end
  if this_month > month then month, mt, mn = this_month, 0, 0 end
end

local function advance()
  local second = math.floor(now)
  local passed = second - s
  new_second = false
  if passed <= 0 then return end  -- a clock that goes back changes nothing
  if passed > WINDOW then
    call('DEL', state)
    rt, tt = 0, 0
  elseif rt ~= 0 or tt ~= 0 then
    local fields = {}
    for left = s - WINDOW, second - WINDOW - 1 do
      fields[#fields + 1] = 'r' .. slot(left)
      fields[#fields + 1] = 't' .. slot(left)
    end
    local values = call('HMGET', state, unpack(fields))
    for i = 1, #values, 2 do
      rt = rt - tonumber(values[i] or 0)
      tt = tt - tonumber(values[i + 1] or 0)
    end
    call('HDEL', state, unpack(fields))
  end
  s = second
  new_second = true
end

local function write_slot()
  if r_now ~= 0 then call('HINCRBY', state, 'r' .. slot(s), r_now) end
  if t_now ~= 0 then call('HINCRBY', state, 't' .. slot(s), t_now) end
  r_now, t_now = 0, 0
end

local function save_state()
  write_slot()
  call('HSET', state, 's', s, 'rt', rt, 'tt', tt, 'day', day, 'dt', dt, 'dn', dn,
    'month', month, 'mt', mt, 'mn', mn)
  if not new_second then return end
  call('EXPIRE', state, KEEP_STATE)
  call('EXPIRE', leases, FORGET * 2)
  call('EXPIRE', expiry, FORGET * 2)
  call('EXPIRE', gone, FORGET * 2)
end

local function add_to_slot(second, requests, tokens)
  if second < s - WINDOW then return end
  if second == s then
    r_now, t_now = r_now + requests, t_now + tokens
    rt, tt = rt + requests, tt + tokens
    return
  end
  if requests ~= 0 then
    call('HINCRBY', state, 'r' .. slot(second), requests)
    rt = rt + requests
  end
  if tokens ~= 0 then
    call('HINCRBY', state, 't' .. slot(second), tokens)
    tt = tt + tokens
  end
end

local function add_to_periods(of_day, tokens, nano)
  if of_day == day then dt, dn = dt + tokens, dn + nano end
  if math.floor(of_day / 100) == month then mt, mn = mt + tokens, mn + nano end
end

local function hold(lease, second, of_day, requests, tokens, nano)
  call('HSET', leases, lease, pack({second, of_day, requests, tokens, nano}))
  call('ZADD', expiry, now + lease_s, lease)
  concurrent = concurrent + 1
end

local function expire()
  for _, lease in ipairs(call('ZRANGEBYSCORE', expiry, '-inf', now)) do
    local held = call('HGET', leases, lease)
    if held then
      local l = unpack_(held)
      add_to_periods(l[2], -l[4], -l[5])
      l[6] = 1
      call('HSET', leases, lease, pack(l))
    end
    call('ZREM', expiry, lease)
    call('ZADD', gone, now, lease)
  end
end

-- Returns from when on `amount` has left the minute, as seconds from now.
local function frees(letter, amount)
  write_slot()
  local fields = {}
  for second = s - WINDOW, s do fields[#fields + 1] = letter .. slot(second) end
  local values, freed = call('HMGET', state, unpack(fields)), 0
  for i, value in ipairs(values) do
    freed = freed + tonumber(value or 0)
    if freed >= amount then
      return math.max(0, s - WINDOW + i - 1 + WINDOW + 1 - now)
    end
  end
  return -1
end

local HUGE = 1e18

-- Returns the wait for one limit: nil when it fits, HUGE when it never will.
local function wait(cap, taken, more, letter)
  if cap < 0 or taken + more <= cap then return nil end
  if more > cap then return HUGE end
  if letter == 'c' then return 1 end
  if letter == 'd' then return 1e9 end
  if letter == 'm' then return 1e12 end
  local seconds = frees(letter, taken + more - cap)
  if seconds < 0 then return HUGE end
  return seconds
end

local function reserve(caps, o)
  local lease, requests, tokens, nano = o[2], o[3], o[4], o[5]
  local worst, limit = nil, 0
  local checks = {
    {rt, requests, 'r'}, {tt, tokens, 't'}, {concurrent, 1, 'c'},
    {dt, tokens, 'd'}, {mt, tokens, 'm'}, {dn, nano, 'd'}, {mn, nano, 'm'},
  }
  for i, check in ipairs(checks) do
    local seconds = wait(caps[i], check[1], check[2], check[3])
    if seconds and (not worst or seconds >= worst) then worst, limit = seconds, i - 1 end
  end
  if worst then
    if worst == HUGE then worst = -1 elseif worst >= 1e9 then worst = -2 end
    return {false, limit, worst, rt, tt}
  end
  add_to_slot(s, requests, tokens)
  add_to_periods(day, tokens, nano)
  hold(lease, s, day, requests, tokens, nano)
  return {true, 0, 0, rt, tt}
end

local function settle(o)
  local lease, held = o[2], call('HGET', leases, o[2])
  if not held then return 0 end
  local l = unpack_(held)
  local requests, tokens, nano = o[3] - l[3], o[4] - l[4], o[5] - l[5]
  add_to_slot(requests > 0 and s or l[1], requests, 0)
  add_to_slot(tokens > 0 and s or l[1], 0, tokens)
  if l[6] then  -- expired: its tokens and money were given back then
    add_to_periods(l[2], o[4], o[5])
    call('ZREM', gone, lease)
  else
    add_to_periods(l[2], tokens, nano)
    call('ZREM', expiry, lease)
    concurrent = concurrent - 1
  end
  call('HDEL', leases, lease)
  return 1
end

local function renew(o)
  local lost = {}
  for _, lease in ipairs(o[2]) do
    if call('ZSCORE', expiry, lease) then
      call('ZADD', expiry, now + lease_s, lease)
    else
      lost[#lost + 1] = lease
    end
  end
  for _, name in ipairs(call('ZRANGEBYSCORE', gone, '-inf', now - FORGET)) do
    call('HDEL', leases, name)
    call('ZREM', gone, name)
  end
  return lost
end

local function assert_lease(o)
  local lease, age, of_day, requests, tokens, nano = o[2], o[3], o[4], o[5], o[6], o[7]
  if call('ZSCORE', expiry, lease) then
    call('ZADD', expiry, now + lease_s, lease)
    return 1
  end
  local held = call('HGET', leases, lease)
  if held then
    local l = unpack_(held)
    add_to_periods(l[2], l[4], l[5])
    call('ZREM', gone, lease)
    hold(lease, l[1], l[2], l[3], l[4], l[5])
  else
    local second = math.floor(now - age)
    add_to_slot(second, requests, tokens)
    add_to_periods(of_day, tokens, nano)
    hold(lease, second, of_day, requests, tokens, nano)
  end
  return 1
end

local function carry(o)
  local name = '+' .. o[2]
  if call('HSETNX', leases, name, 1) == 0 then return 0 end
  call('ZADD', gone, now, name)
  add_to_slot(math.floor(now - o[3]), o[5], o[6])
  add_to_periods(o[4], o[6], o[7])
  return 1
end

local function act(caps, o)
  local kind = o[1]
  if kind == 0 then return reserve(caps, o) end
  if kind == 1 then return settle(o) end
  if kind == 2 then return renew(o) end
  if kind == 3 then return assert_lease(o) end
  if kind == 4 then return carry(o) end
  return {rt, tt, concurrent, dt, mt, dn, mn}
end

local replies = {}
for t, batch in ipairs(asked[3]) do
  local k = (t - 1) * 4
  state, leases, expiry, gone = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  load_state(batch[2], batch[3])
  advance()
  expire()
  concurrent = call('ZCARD', expiry)
  local answers = {}
  for i, o in ipairs(batch[4]) do answers[i] = act(batch[1], o) end
  save_state()
  replies[t] = answers
end
return pack({now_ms, replies})
