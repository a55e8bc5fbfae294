#!lua
-- admit: grants the largest g in [need, want] for which every counter has room, or refuses and changes nothing (but for the sweep).
--
-- KEYS  see steps.lua
-- ARGV  1 figures (msgpack): state of expired holds, start_ms, end_ms of the time when all windows run, then see steps.lua
--       2 request (msgpack): hold id, replacing, tag, need, aim, want, ttl_ms, {fixed, rate, fixed, rate ...}
-- Returns {status, now_ms, g, room, state, state, ...}, two figures of state for each counter; then, only if there are any, {swept ...}.
-- status: 0 granted, 1 refused, 2 stale window, 3 cancelled; the last two have no states.
local SWEEP_IN_ADMIT, PLENTY = '4', 8
local figures, request = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2])
local id, replacing, tag, need, aim, want, ttl_ms, amounts = unpack(request)
local counters = #KEYS - 2

local swept = sweep(figures[1], SWEEP_IN_ADMIT)

local function reply(status, g, room, states)
  local answer = {status, now_ms, g, room}
  for j = 1, 2 * counters do answer[4 + j] = states[j] end
  if #swept > 0 then answer[#answer + 1] = swept end
  return answer
end

local function all_states()
  local states = {}
  for i = 1, counters do states[2 * i - 1], states[2 * i] = state(figures, i) end
  return states
end

local existing = read_hold(id)
if existing and existing[2] ~= 'o' then return reply(3, 0, 0, {}) end
if existing then return reply(0, existing[3], max(existing[3], want), all_states()) end
if now_ms < figures[2] or (figures[3] > 0 and now_ms >= figures[3]) then return reply(2, 0, 0, {}) end

local old = replacing ~= '' and read_hold(replacing)
if old and is_marker(old) then old = false end

-- Reads every counter: its state, and for a bucket and a window what writing it needs.
local states, extra, extra_more = {}, {}, {}
local function read_all()
  for i = 1, counters do
    local at, key = 4 * i, KEYS[2 + i]
    local kind = figures[at]
    if kind == 'b' then
      states[2 * i - 1], extra[i], extra_more[i] = refilled(key, figures[at + 2], figures[at + 3])
      states[2 * i] = 0
    elseif kind == 's' then
      states[2 * i - 1], states[2 * i] = state(figures, i)
    else
      states[2 * i - 1], states[2 * i], extra[i] = pair(key)
    end
  end
end
read_all()

if old then  -- as if what it holds had been given back
  local places = {}
  for i = 1, counters do places[KEYS[2 + i]] = i end
  for at = 5, #old - 1, 5 do
    local i = places[old[at + 1]]
    if i and not (figures[4 * i] == 's' and old[at + 5] < floor(now_ms / figures[4 * i + 2]) - SLICES) then
      local used_back, held_back = given_back(old, at)
      states[2 * i - 1] = max(0, states[2 * i - 1] - used_back)
      if figures[4 * i] ~= 's' then states[2 * i] = max(0, states[2 * i] - held_back) end
    end
  end
end

local room, plenty = want, true
for i = 1, counters do
  local at = 4 * i
  local fixed, rate = amounts[2 * i - 1], amounts[2 * i]
  local free = figures[at + 1] - states[2 * i - 1]
  if figures[at] == 'w' or figures[at] == 'o' then free = free - states[2 * i] end
  local all = amount(fixed, rate, want)
  if all > max(free, 0) then
    local fits = -1
    if rate > 0 and free >= fixed then fits = floor((free - fixed) * 1000 / rate) end
    if fits < room then room = fits end
  end
  if fixed + PLENTY * (all - fixed) > max(free, 0) then plenty = false end
end
if room < need then return reply(1, 0, max(room, 0), states) end

-- From here on the admission succeeds.
local g = room
if room == want and not plenty then g = max(need, aim) end
if old then
  local nothing = {}
  for i = 1, counters do nothing[i] = 0 end
  finish(figures, old, nothing)
  drop_hold(replacing)
  read_all()
end
local hold = {1, 'o', g, 0, tag}
for i = 1, counters do
  local at, key = 4 * i, KEYS[2 + i]
  local kind, a = figures[at], figures[at + 2]
  local fixed, rate = amounts[2 * i - 1], amounts[2 * i]
  local n, slot = amount(fixed, rate, g), 0
  if kind == 'b' then
    states[2 * i - 1] = put_bucket(key, a, figures[at + 3], states[2 * i - 1], extra[i], extra_more[i], n)
  elseif kind == 's' then
    slot = floor(now_ms / a)
    put_slice(key, a, slot, n)
    states[2 * i - 1], states[2 * i] = state(figures, i)
  else
    states[2 * i] = states[2 * i] + n
    if extra[i] then
      if n > 0 then call('HINCRBY', key, 'h', n) end
    else
      put_pair(key, kind, states[2 * i - 1], states[2 * i])
      if kind == 'w' and a > 0 then call('PEXPIREAT', key, a + COUNTER_GRACE_MS) end
    end
  end
  local claim = 5 * i
  hold[claim + 1], hold[claim + 2], hold[claim + 3], hold[claim + 4], hold[claim + 5] = key, kind, fixed, rate, slot
end
put_hold(id, hold, now_ms + ttl_ms)
return reply(0, g, room, states)
