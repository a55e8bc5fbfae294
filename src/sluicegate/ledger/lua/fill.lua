#!lua flags=allow-oom
-- fill: makes those of the counters that are not there, as they would be had they counted this. A window that is there and has used less is raised to
-- it; any other that is there, or is expected to be, stays.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch, 5.. counters
-- ARGV  1 figures: as admit's
--       2 request (msgpack): known (-1 while a tree is being seeded and has no epoch yet), then for each counter what it has used, its deficit,
--         or {slice, amount, slice, amount ...}
-- Returns {0, now_ms, seq}; or {5, now_ms, why}: lost.
--@base
--@counters
local request = {cmsgpack.unpack(ARGV[2])}
local known, answer = request[1], {0, now_ms, 0}
if known >= 0 then
  --@advance
  answer[3] = seq
end
for i = 1, counters do
  local key, kind, a, value = KEYS[4 + i], figures[4 * i], figures[4 * i + 2], request[1 + i]
  if call('EXISTS', key) == 0 then
    if kind == 'b' then
      put_bucket(i, 0, 0, now_ms, value)
    elseif kind == 's' and #value > 0 then
      call('HSET', key, unpack(value))
      call('PEXPIREAT', key, (floor(now_ms / a) + SLICES + 1) * a)
    elseif kind == 'w' and (a == 0 or now_ms < a + COUNTER_GRACE_MS) then
      lost = nil
      level(i)
      if not lost then
        put_pair(key, 'w', value, 0)
        --@made
      end
    end
  elseif kind == 'w' then
    lost = nil
    local used, held = level(i)
    if not lost and value > used then put_pair(key, 'w', value, held) end
  end
end
return answer
