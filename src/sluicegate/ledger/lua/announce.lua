#!lua flags=allow-oom
-- announce: takes up an open hold, whatever the ceilings say, unless its id is known. Windows that are over are left out.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch, 5.. counters
-- ARGV  1 figures: as admit's
--       2 request (msgpack): known, hold id, tag, g, seen, ttl_ms, fixed, rate, fixed, rate ...
-- Returns {0, now_ms, seq}; or {5, now_ms, why}: lost.
--@base
--@counters
local request = {cmsgpack.unpack(ARGV[2])}
local known, id, tag, g, seen, ttl_ms = request[1], request[2], request[3], request[4], request[5], request[6]
--@advance
if read_hold(id) then return {0, now_ms, seq} end
for i = 1, counters do level(i) end
--@gone

local hold = {1, 'o', g, seen, tag}
for i = 1, counters do
  local key, kind, a = KEYS[4 + i], figures[4 * i], figures[4 * i + 2]
  local fixed, rate, slot = request[5 + 2 * i], request[6 + 2 * i], 0
  local more = amount(fixed, rate, g)
  if kind ~= 'w' or a == 0 or now_ms < a then
    local first, second, known_or_remainder, time_ms = level(i)
    if kind == 'b' then
      slot = now_ms
      put_bucket(i, first, known_or_remainder, time_ms, more)
    elseif kind == 's' then
      slot = floor(now_ms / a)
      slide(key, a, slot, more)
    else
      put_pair(key, kind, first, second + more)
      if kind == 'w' and not known_or_remainder then
        --@made
      end
    end
    for _, part in ipairs({key, kind, fixed, rate, slot}) do hold[#hold + 1] = part end
  end
end
put_hold(id, hold, now_ms + ttl_ms)
return {0, now_ms, seq}
