-- counters: those of the caller, KEYS[5] and on; counter i is described by figures from 4 * i on: kind, ceiling, a, b. In a cluster one more key
-- follows, which is never there: a script that names it is refused, before it does anything, while the slot is on its way to another server.
-- a, b: of a bucket gain and per_ms, of a sliding window the length of a slice, of a window its end (0: none) and its first mark (2^53: none).
local SLICES, COUNTER_GRACE_MS = 60, 3600000
local FAR_MS = 2 ^ 52  -- no expiry is later than this, however large a debt: a script must not fail between two writes
local figures = {cmsgpack.unpack(ARGV[1])}
local counters = (#figures - 3) / 4
local DAMAGED = 'a counter is damaged'  -- there, without a field that every write puts, or with one that is no number

-- A sliding window, a hash of slice number -> amount: its sum, and the time until its first slice leaves. With `more`, after adding it to a slice.
local function slide(key, per_ms, slot, more)
  local f = call('HGETALL', key)
  local sum, first, before, left = 0, nil, 0, {}
  local current = floor(now_ms / per_ms)
  for j = 1, #f, 2 do
    local number, n = tonumber(f[j]), tonumber(f[j + 1])
    if not (number and n) then
      lost = DAMAGED
    elseif number < current - SLICES then
      left[#left + 1] = f[j]
    elseif number == slot then
      before = n
    elseif n > 0 then
      sum = sum + n
      if not first or number < first then first = number end
    end
  end
  if more then
    before = max(0, before + more)
    if #left > 0 then call('HDEL', key, unpack(left)) end
    call('HSET', key, slot, before)
    call('PEXPIREAT', key, (current + SLICES + 1) * per_ms)
    if before > 0 then
      sum = sum + before
      if not first or slot < first then first = slot end
    end
  end
  return sum, first and (first + SLICES + 1) * per_ms - now_ms or 0
end

-- The state of counter i as replies give it, two figures; then of a bucket its remainder, its time and when it was last full, of a window whether
-- there is such a counter. A bucket is a hash of d (deficit), r (remainder), t (time), f (when it was last full). Time never runs backwards; a full
-- bucket keeps no remainder. A window that is missing is a new one, unless the index knows it or was lost itself.
local function level(i)
  local key, kind, a = KEYS[4 + i], figures[4 * i], figures[4 * i + 2]
  if kind == 'b' then
    local f, per_ms = call('HMGET', key, 'd', 'r', 't', 'f'), figures[4 * i + 3]
    local d, r, t = tonumber(f[1]), tonumber(f[2]), tonumber(f[3])
    if not (d and r and t) then
      if f[1] or f[3] then lost = DAMAGED end
      return 0, 0, 0, now_ms, now_ms
    end
    local time_ms = max(now_ms, t)
    local x = (time_ms - t) * a + r
    local deficit = d - floor(x / per_ms)
    if deficit <= 0 then return 0, 0, 0, time_ms, time_ms end
    return deficit, 0, x % per_ms, time_ms, (f[4] or 0) + 0
  elseif kind == 's' then
    return slide(key, a)
  end
  local f = call('HMGET', key, 'u', 'h')
  local used, held = tonumber(f[1]), tonumber(f[2])
  if f[1] and not used or f[2] and not held or kind == 'w' and not used ~= not held then
    lost = DAMAGED
  elseif kind == 'w' and not held then
    local scores = call('ZMSCORE', INDEX, '', key)
    if not scores[1] or (scores[2] and scores[2] + 0 > now_ms) then lost = 'a counter is missing, or the index of counters' end
  end
  return used or 0, held or 0, held
end

-- Takes `more` from bucket i at the level read before, or gives it back; returns the new deficit. A bucket is forgotten when it would be full; one
-- that is given back to is full earlier than was set before, so its expiry may stay.
local function put_bucket(i, before, remainder, time_ms, more)
  local key, gain, per_ms = KEYS[4 + i], figures[4 * i + 2], figures[4 * i + 3]
  local deficit = before + more
  if deficit <= 0 then
    call('DEL', key)
    return 0
  end
  if before == 0 then
    local time = string.format('%.0f', time_ms)
    call('HSET', key, 'd', deficit, 'r', '0', 't', time, 'f', time)
  else
    call('HSET', key, 'd', deficit, 'r', remainder, 't', time_ms)
  end
  if more > 0 then call('PEXPIREAT', key, min(time_ms + ceil(deficit * per_ms / gain) + 1, FAR_MS)) end
  return deficit
end
