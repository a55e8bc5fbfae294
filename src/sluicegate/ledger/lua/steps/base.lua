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
local lost  -- why, once something that should be there turns out to be missing

-- What a grant of g output tokens takes from a counter.
local function amount(fixed, rate, g)
  return fixed + ceil(rate * g / 1000)
end

-- Hold records. Flat: version, state, g, seen, tag, then key, kind, fixed, rate, slot for each claim; claim i begins behind 5 * i.
-- States: o open, h expired and charged as held, s expired and charged as seen; markers: f forced, c cancelled.

-- Past the array's header and the version, so that the values come as a list, which is made at its size; the version's place in it is taken up first by
-- what unpack_limit tells of its own.
local function read_hold(id)
  local record = call('HGET', HOLDS, id)
  if not record then return nil end
  local hold = {cmsgpack.unpack_limit(record, 4000, string.byte(record) == 220 and 4 or 2)}
  hold[1] = 1
  return hold
end

local function put_hold(id, hold, expires_ms)
  call('HSET', HOLDS, id, cmsgpack.pack(hold))
  call('ZADD', EXPIRIES, expires_ms, id)
end

local function drop_hold(id)
  call('HDEL', HOLDS, id)
  call('ZREM', EXPIRIES, id)
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
