-- base: the clock, the records of holds, and counters that hold. A line `--@name` stands for the text of steps/name.lua.
--
-- The specification is core/rules.py and core/book.py: same names, same order. Keys and formats of records: docs/redis-keys.md.
-- Numbers are integers below 2^53, exact in Lua's doubles. An amount goes out only as a number that redis.call or a reply formats, or that
-- cmsgpack packs; tostring, .. and table.concat print 14 digits.
-- Closures and tables are what a call costs, in garbage, beside the commands: steps that are rare are made where they are needed.
local call, floor, ceil, max, min = redis.call, math.floor, math.ceil, math.max, math.min
local HOLDS, EXPIRIES, INDEX, EPOCH = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local time = call('TIME')
local now_ms = time[1] * 1000 + floor(time[2] / 1000)

-- What a grant of g output tokens takes from a counter.
local function amount(fixed, rate, g)
  return fixed + ceil(rate * g / 1000)
end

-- Hold records. Flat: version, state, g, seen, tag, then key, kind, fixed, rate, slot for each claim; claim i begins behind 5 * i.
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

-- What ending a hold at nothing used gives back to the counter of the claim behind `at`: from used (deficit, slice), from held. The former of an
-- expired hold is what its expiry has charged.
local function given_back(hold, at)
  local kind, g = hold[at + 2], hold[3]
  if kind == 'w' or kind == 'o' then
    if hold[2] == 'o' then return 0, amount(hold[at + 3], hold[at + 4], g) end
    if kind == 'o' then return 0, 0 end
    if hold[2] == 's' then g = hold[4] end
  end
  return amount(hold[at + 3], hold[at + 4], g), 0
end

-- A w counter is a hash of u (used) and h (held); an o counter one of h alone, and no key when nothing is held.

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
  local f = call('HMGET', key, 'u', 'h')
  if f[1] or kind == 'o' then put_pair(key, kind, max(0, (f[1] or 0) + more_used), max(0, (f[2] or 0) + more_held)) end
end
