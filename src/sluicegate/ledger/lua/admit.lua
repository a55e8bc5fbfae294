#!lua
-- admit: grants `want`, `aim` of it where room is scarce, or all the room where that is less; refuses where it is below `need`, and changes nothing
-- (but for what it sweeps).
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch, 5.. counters
-- ARGV  1 figures (msgpack): state of expired holds (h, s); start_ms, end_ms of the time when all windows run; then as steps/counters.lua says
--       2 request (msgpack): known, hold id, replacing, tag, need, aim, want, ttl_ms, fixed, rate, fixed, rate ...
-- Returns {status, now_ms, seq, g, room, state, state ...}, two figures of state for each counter; then, only if there are any, {swept ...}.
-- status: 0 granted, 1 refused, 2 stale window, 3 cancelled; the last two have no states; 5 lost, then why instead of seq.
--@base
--@counters
local PLENTY = 8
local request = {cmsgpack.unpack(ARGV[2])}
local known, id, replacing, tag = request[1], request[2], request[3], request[4]
local need, aim, want, ttl_ms = request[5], request[6], request[7], request[8]
--@advance

-- Steps that most admissions do without.
local function rare()
  --@back
  --@charge
  --@finish
  return charge, finish, given_back
end

local swept
if call('ZCOUNT', EXPIRIES, '-inf', now_ms) > 0 then
  swept = rare()(call('ZRANGEBYSCORE', EXPIRIES, '-inf', now_ms, 'LIMIT', '0', '4'), figures[1])
end

-- Tables with room for what usually comes into them do not have to grow.
local answer = {0, now_ms, seq, 0, 0, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}
local extra = {nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}  -- for each counter, what writing it needs

local function read_all()
  for i = 1, counters do answer[4 + 2 * i], answer[5 + 2 * i], extra[2 * i - 1], extra[2 * i] = level(i) end
end

local function reply(status, g, room)
  answer[1], answer[4], answer[5] = status, g, room
  if swept then answer[#answer + 1] = swept end
  return answer
end

local existing = read_hold(id)
if existing and existing[2] ~= 'o' then return reply(3, 0, 0) end
if not existing and (now_ms < figures[2] or (figures[3] > 0 and now_ms >= figures[3])) then return reply(2, 0, 0) end
local old = not existing and replacing ~= '' and read_hold(replacing)
if old and (old[2] == 'f' or old[2] == 'c') then old = false end
read_all()
if lost then
  call('DEL', EPOCH)
  return {5, now_ms, lost, 0, 0, swept}
end
if existing then return reply(0, existing[3], max(existing[3], want)) end
if old then  -- as if what it holds had been given back, where that still counts
  local _, _, given_back = rare()
  local places = {}
  for i = 1, counters do places[KEYS[4 + i]] = i end
  for at = 5, #old - 1, 5 do
    local i, slot = places[old[at + 1]], old[at + 5]
    local since = slot  -- what was taken before this is forgotten
    if i and figures[4 * i] == 's' then
      since = floor(now_ms / figures[4 * i + 2]) - SLICES
    elseif i and figures[4 * i] == 'b' then
      since = select(5, level(i))
    end
    if i and slot >= since then
      local used_back, held_back = given_back(old, at)
      answer[4 + 2 * i] = max(0, answer[4 + 2 * i] - used_back)
      if held_back > 0 then answer[5 + 2 * i] = max(0, answer[5 + 2 * i] - held_back) end
    end
  end
end

local room, plenty = want, true
for i = 1, counters do
  local fixed, rate, kind = request[7 + 2 * i], request[8 + 2 * i], figures[4 * i]
  local free = figures[4 * i + 1] - answer[4 + 2 * i]
  if kind == 'w' or kind == 'o' then free = free - answer[5 + 2 * i] end
  local all = amount(fixed, rate, want)
  if all > max(free, 0) then
    local fits = -1
    if rate > 0 and free >= fixed then fits = floor((free - fixed) * 1000 / rate) end
    room = min(room, fits)
  end
  plenty = plenty and fixed + PLENTY * (all - fixed) <= max(free, 0)
end
if room < need then return reply(1, 0, max(room, 0)) end

-- From here on the admission succeeds.
local g = room
if room == want and not plenty then g = aim end
if old then
  local _, finish = rare()
  local nothing = {}
  for i = 1, counters do nothing[i] = 0 end
  finish(old, nothing, 0)
  drop_hold(replacing)
  read_all()
end
local hold = {1, 'o', g, 0, tag, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}
for i = 1, counters do
  local key, kind, a = KEYS[4 + i], figures[4 * i], figures[4 * i + 2]
  local fixed, rate, slot = request[7 + 2 * i], request[8 + 2 * i], 0
  local more = amount(fixed, rate, g)
  if kind == 'b' then
    slot = now_ms
    answer[4 + 2 * i] = put_bucket(i, answer[4 + 2 * i], extra[2 * i - 1], extra[2 * i], more)
  elseif kind == 's' then
    slot = floor(now_ms / a)
    answer[4 + 2 * i], answer[5 + 2 * i] = slide(key, a, slot, more)
  else
    answer[5 + 2 * i] = answer[5 + 2 * i] + more
    if not extra[2 * i - 1] then
      put_pair(key, kind, answer[4 + 2 * i], answer[5 + 2 * i])
      if kind == 'w' then
        --@made
      end
    elseif more > 0 then
      call('HINCRBY', key, 'h', more)
    end
  end
  hold[5 * i + 1], hold[5 * i + 2], hold[5 * i + 3], hold[5 * i + 4], hold[5 * i + 5] = key, kind, fixed, rate, slot
end
put_hold(id, hold, now_ms + ttl_ms)
return reply(0, g, room)
