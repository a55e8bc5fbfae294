#!lua
-- extend: raises a hold's grant to at most `want` and at least `need` (totals), or refuses and leaves the grant as it is.
-- Renews the expiry, reopens an expired hold, records what was seen.
--
-- KEYS  1 holds, 2 expiries, 3.. counters
-- ARGV  1 figures: as admit's
--       2 request (msgpack): hold id, need, want, seen, ttl_ms
-- Returns as admit. status: 0 granted, 1 refused, 4 gone (without states).
--@base
--@counters
local id, need, want, seen, ttl_ms = unpack(cmsgpack.unpack(ARGV[2]))

local hold = read_hold(id)
if not hold or hold[2] == 'f' or hold[2] == 'c' then return {4, now_ms, 0, 0} end

if hold[2] ~= 'o' then
  --@reopen
  reopen(hold)
end
hold[4] = max(hold[4], seen)
local places, g, room = {}, hold[3], want
for i = 1, counters do places[KEYS[2 + i]] = i end
for at = 5, #hold - 1, 5 do
  local i, fixed, rate = places[hold[at + 1]], hold[at + 3], hold[at + 4]
  if i and hold[at + 2] == 'w' and rate > 0 then
    local used, held = level(i)
    local free = figures[4 * i + 1] - used - held + amount(fixed, rate, g)
    if amount(fixed, rate, want) > free then
      local fits = -1
      if free >= fixed then fits = floor((free - fixed) * 1000 / rate) end
      room = min(room, fits)
    end
  end
end
local granted = g >= need or room >= need
if room > g and granted then
  for at = 5, #hold - 1, 5 do
    local more = amount(hold[at + 3], hold[at + 4], room) - amount(hold[at + 3], hold[at + 4], g)
    if hold[at + 2] == 'w' and more > 0 then shift(hold[at + 1], 'w', 0, more) end
  end
  hold[3] = room
end
put_hold(id, hold, now_ms + ttl_ms)
local answer = {granted and 0 or 1, now_ms, hold[3], max(room, hold[3])}
for i = 1, counters do answer[3 + 2 * i], answer[4 + 2 * i] = level(i) end
return answer
