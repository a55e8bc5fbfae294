-- steps.lua: what the verbs share. Scripts cannot import, so the loader puts this text between the first line of a script and the rest of it.
-- The specification is core/rules.py: same names, same order. Keys and record formats: docs/redis-keys.md.
--
-- KEYS  1 holds (hash: id -> record), 2 expiries (sorted set: id by ms), 3.. counters
--
-- Numbers are integers below 2^53, exact in Lua's doubles. An amount goes out only as a number that redis.call or a reply formats, or that
-- cmsgpack packs; tostring, .. and table.concat print 14 digits.
local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local HOLDS, EXPIRIES = KEYS[1], KEYS[2]
local SLICES, COUNTER_GRACE_MS, EXPIRED_KEPT_MS = 60, 3600000, 604800000
local FAR_MS = 2 ^ 52  -- no expiry is later than this, however large a debt: a script must not fail between two writes
local time = call('TIME')
local now_ms = time[1] * 1000 + floor(time[2] / 1000)

local function amount(fixed, rate, g)
  return fixed + ceil(rate * g / 1000)
end

-- Hold records. Flat: version, state, g, seen, tag, then key, kind, fixed, rate, slot for each claim; claim i starts behind 5 * i.
-- States: o open, h expired and charged as held, s expired and charged as seen; markers: f forced, c cancelled.

local function read_hold(id)
  local record = call('HGET', HOLDS, id)
  return record and cmsgpack.unpack(record)
end

local function put_hold(id, hold, expires_ms)
  call('HSET', HOLDS, id, cmsgpack.pack(hold))
  call('ZADD', EXPIRIES, expires_ms, id)
end

local function drop_hold(id)
  call('HDEL', HOLDS, id)
  call('ZREM', EXPIRIES, id)
end

local function is_marker(hold)
  return hold[2] == 'f' or hold[2] == 'c'
end

local function held(hold, at)
  return amount(hold[at + 3], hold[at + 4], hold[3])
end

-- What the expiry of a hold charges, or has charged, to one counter.
local function charged(hold, at)
  if hold[at + 2] == 'o' then return 0 end
  return amount(hold[at + 3], hold[at + 4], hold[2] == 's' and hold[at + 2] == 'w' and hold[4] or hold[3])
end

-- What ending a hold at nothing used gives back to one counter: from used (deficit, slice), from held.
local function given_back(hold, at)
  if hold[at + 2] == 'b' or hold[at + 2] == 's' then return held(hold, at), 0 end
  if hold[2] == 'o' then return 0, held(hold, at) end
  return charged(hold, at), 0
end

-- Counters. w: u, h. o: h alone, and no key when nothing is held. b: d, r, t. s: slice number -> amount.

-- Used, held, and whether there is such a counter.
local function pair(key)
  local f = call('HMGET', key, 'u', 'h')
  return (f[1] or 0) + 0, (f[2] or 0) + 0, f[2] ~= false
end

local function put_pair(key, kind, used, held)
  if kind == 'w' then
    call('HSET', key, 'u', used, 'h', held)
  elseif held > 0 then
    call('HSET', key, 'h', held)
  else
    call('DEL', key)
  end
end

-- Moves a w or o counter by its claim alone. A window that is forgotten stays so: made anew without its end it would never expire.
local function shift(key, kind, more_used, more_held)
  local used, held, known = pair(key)
  if known or kind == 'o' then put_pair(key, kind, max(0, used + more_used), max(0, held + more_held)) end
end

-- A bucket now: deficit, remainder, time. Time never runs backwards; a full bucket keeps no remainder.
local function refilled(key, gain, per_ms)
  local f = call('HMGET', key, 'd', 'r', 't')
  if not f[1] then return 0, 0, now_ms end
  local time_ms = max(now_ms, f[3] + 0)
  local x = (time_ms - f[3]) * gain + f[2]
  local deficit = f[1] - floor(x / per_ms)
  if deficit <= 0 then return 0, 0, time_ms end
  return deficit, x % per_ms, time_ms
end

-- Takes `more` from a bucket at the level that `refilled` gave, or gives it back; returns the new deficit. The bucket is forgotten when it would
-- be full; one that is given back to is full earlier than was set before, so its expiry may stay.
local function put_bucket(key, gain, per_ms, deficit, remainder, time_ms, more)
  deficit = deficit + more
  if deficit <= 0 then
    call('DEL', key)
    return 0
  end
  call('HSET', key, 'd', deficit, 'r', remainder, 't', time_ms)
  if more > 0 then call('PEXPIREAT', key, min(time_ms + ceil(deficit * per_ms / gain) + 1, FAR_MS)) end
  return deficit
end

-- The slices of a sliding window that count: by number, their sum, the first of them, and a list of those that no longer count.
local function slices_of(key, per_ms)
  local f = call('HGETALL', key)
  local slices, sum, first, old = {}, 0, nil, {}
  local oldest = floor(now_ms / per_ms) - SLICES
  for j = 1, #f, 2 do
    local slot, n = f[j] + 0, f[j + 1] + 0
    if slot >= oldest and n > 0 then
      slices[slot], sum = n, sum + n
      if not first or slot < first then first = slot end
    else
      old[#old + 1] = f[j]
    end
  end
  return slices, sum, first, old
end

local function put_slice(key, per_ms, slot, more)
  local slices, _, _, old = slices_of(key, per_ms)
  if #old > 0 then call('HDEL', key, unpack(old)) end
  call('HSET', key, slot, max(0, (slices[slot] or 0) + more))
  call('PEXPIREAT', key, (floor(now_ms / per_ms) + SLICES + 1) * per_ms)
end

-- The state of a counter as replies give it. figures: kind, ceiling, a, b for each counter, that of counter i at 4 * i (a, b: see redis.py).
local function state(figures, i)
  local kind, a = figures[4 * i], figures[4 * i + 2]
  if kind == 'b' then
    return (refilled(KEYS[2 + i], a, figures[4 * i + 3])), 0
  elseif kind == 's' then
    local _, sum, first = slices_of(KEYS[2 + i], a)
    return sum, first and (first + SLICES + 1) * a - now_ms or 0
  end
  local used, held = pair(KEYS[2 + i])
  return used, held
end

-- The verbs' larger steps.

-- An expired hold whose worker lives after all: what was charged is held again, whatever the ceiling says.
local function reopen(hold)
  for at = 5, #hold - 1, 5 do
    local kind = hold[at + 2]
    if kind == 'w' or kind == 'o' then shift(hold[at + 1], kind, -charged(hold, at), held(hold, at)) end
  end
  hold[2] = 'o'
end

-- Charges holds whose expiry has passed, at most `limit`, as `expired_state` says (h, s); forgets old records.
-- Returns a list of {id, tag, g, seen, key, amount, key, amount ...}.
local function sweep(expired_state, limit)
  local swept = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', EXPIRIES, '-inf', now_ms, 'LIMIT', '0', limit)) do
    local hold = read_hold(id)
    if not hold or hold[2] ~= 'o' then
      drop_hold(id)
    else
      hold[2] = expired_state
      local entry = {id, hold[5], hold[3], hold[4]}
      for at = 5, #hold - 1, 5 do
        local key, kind, charge = hold[at + 1], hold[at + 2], charged(hold, at)
        if kind == 'w' or kind == 'o' then shift(key, kind, charge, -held(hold, at)) end
        entry[#entry + 1] = key
        entry[#entry + 1] = charge
      end
      put_hold(id, hold, now_ms + EXPIRED_KEPT_MS)
      swept[#swept + 1] = entry
    end
  end
  return swept
end

-- Replaces on counter i what a hold held or was charged by what was used.
local function replace(figures, i, used_back, held_back, slot, actual)
  local key, kind, a, b = KEYS[2 + i], figures[4 * i], figures[4 * i + 2], figures[4 * i + 3]
  if kind == 'b' then
    if actual ~= used_back then
      local deficit, remainder, time_ms = refilled(key, a, b)
      put_bucket(key, a, b, deficit, remainder, time_ms, actual - used_back)
    end
  elseif kind == 's' then
    local more, current = actual - used_back, floor(now_ms / a)
    if more < 0 and slot >= current - SLICES then
      put_slice(key, a, slot, more)
    elseif more > 0 then
      put_slice(key, a, current, more)  -- an overrun counts from now, so that it is repaid in full
    end
  elseif kind == 'o' then
    local used, held = pair(key)
    put_pair(key, 'o', used, max(0, held - held_back))
  elseif a == 0 or now_ms < a + COUNTER_GRACE_MS then  -- else the window is long over and its counter forgotten
    local used, held, known = pair(key)
    put_pair(key, 'w', max(0, used - used_back) + actual, max(0, held - held_back))
    if not known and a > 0 then call('PEXPIREAT', key, a + COUNTER_GRACE_MS) end
  end
end

-- Gives back to a counter that the caller no longer names; its refill figures are not known, its state is.
local function replace_unknown(key, kind, used_back, held_back, slot)
  if kind == 'b' then
    local deficit = call('HGET', key, 'd')
    if deficit then call('HSET', key, 'd', max(0, deficit - used_back)) end
  elseif kind == 's' then
    local n = call('HGET', key, slot)
    if n then call('HSET', key, slot, max(0, n - used_back)) end
  else
    shift(key, kind, -used_back, -held_back)
  end
end

-- Ends a hold at `actual`, one figure for each counter named. Counters are matched by key, never by place.
local function finish(figures, hold, actual)
  local claims = {}
  for at = 5, #hold - 1, 5 do claims[hold[at + 1]] = at end
  for i = 1, #KEYS - 2 do
    local key = KEYS[2 + i]
    local at = claims[key]
    if at then
      local used_back, held_back = given_back(hold, at)
      replace(figures, i, used_back, held_back, hold[at + 5], actual[i])
      claims[key] = nil
    else
      replace(figures, i, 0, 0, 0, actual[i])
    end
  end
  for key, at in pairs(claims) do
    local used_back, held_back = given_back(hold, at)
    replace_unknown(key, hold[at + 2], used_back, held_back, hold[at + 5])
  end
end
