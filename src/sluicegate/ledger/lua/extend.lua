#!lua
-- extend: raises a hold's grant to at most `want` and at least `need` (totals), or refuses and leaves the grant as it is.
-- Renews the expiry, reopens an expired hold, records what was seen.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch, 5.. counters
-- ARGV  1 figures: as admit's
--       2 request (msgpack): known, hold id, need, want, seen, ttl_ms
-- Returns as admit. status: 0 granted, 1 refused, 4 gone (without states), 5 lost.
--@base
--@counters
--@back
local known, id, need, want, seen, ttl_ms = cmsgpack.unpack(ARGV[2])
--@advance

local hold = read_hold(id)
if not hold and call('HEXISTS', HOLDS, '') == 0 then lost = 'the records of holds are missing' end
--@gone
if not hold or hold[2] == 'f' or hold[2] == 'c' then return {4, now_ms, seq, 0, 0} end

local answer = {0, now_ms, seq, 0, 0}
for i = 1, counters do answer[4 + 2 * i], answer[5 + 2 * i] = level(i) end
--@gone
if hold[2] ~= 'o' then
  --@reopen
  reopen(hold)
  for i = 1, counters do answer[4 + 2 * i], answer[5 + 2 * i] = level(i) end
end
hold[4] = max(hold[4], seen)
local places, g, room, claimed = {}, hold[3], want, 0
for i = 1, counters do places[KEYS[4 + i]] = i end
for at = 5, #hold - 1, 5 do
  local i, fixed, rate = places[hold[at + 1]], hold[at + 3], hold[at + 4]
  if i then
    claimed = claimed + 1
    places[hold[at + 1]] = nil
    if hold[at + 2] == 'w' and rate > 0 then
      local free = figures[4 * i + 1] - answer[4 + 2 * i] - answer[5 + 2 * i] + amount(fixed, rate, g)
      if amount(fixed, rate, want) > free then
        local fits = -1
        if free >= fixed then fits = floor((free - fixed) * 1000 / rate) end
        room = min(room, fits)
      end
    end
  end
end
if claimed < counters then  -- a window that was over when the hold was announced is not known any more: no more is granted in it
  for _, i in pairs(places) do
    local end_ms = figures[4 * i + 2]
    if figures[4 * i] == 'w' and end_ms > 0 and now_ms >= end_ms then room = min(room, g) end
  end
end
local granted = g >= need or room >= need
if room > g and granted then
  for at = 5, #hold - 1, 5 do
    local more = amount(hold[at + 3], hold[at + 4], room) - amount(hold[at + 3], hold[at + 4], g)
    if hold[at + 2] == 'w' and more > 0 then shift(hold[at + 1], 'w', 0, more) end
  end
  hold[3] = room
  for i = 1, counters do answer[4 + 2 * i], answer[5 + 2 * i] = level(i) end
end
put_hold(id, hold, now_ms + ttl_ms)
answer[1], answer[4], answer[5] = granted and 0 or 1, hold[3], max(room, hold[3])
return answer
