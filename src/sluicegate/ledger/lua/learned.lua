#!lua
-- learned: adds to shared integer tables and returns their sums over this generation and the one before.
--
-- KEYS  1.. tables; a generation's hash is `<key>:<generation>`, field -> sum
-- ARGV  1 increments (msgpack): for each table {field, n, field, n ...}
-- Returns for each table {field, sum, field, sum ...}.
local GENERATION_MS = 600000
local increments = cmsgpack.unpack(ARGV[1])
local time = redis.call('TIME')
local generation = math.floor(time[1] * 1000 / GENERATION_MS)

local sums = {}
for i, name in ipairs(KEYS) do
  local present = name .. string.format(':%.0f', generation)
  local before = name .. string.format(':%.0f', generation - 1)
  local increment = increments[i]
  for j = 1, #increment, 2 do redis.call('HINCRBY', present, increment[j], increment[j + 1]) end
  if #increment > 0 then redis.call('PEXPIREAT', present, (generation + 2) * GENERATION_MS) end
  local sum, places = {}, {}
  for _, key in ipairs({present, before}) do
    local f = redis.call('HGETALL', key)
    for j = 1, #f, 2 do
      local at = places[f[j]] or #sum + 1
      places[f[j]] = at
      sum[at], sum[at + 1] = f[j], (sum[at + 1] or 0) + f[j + 1]
    end
  end
  sums[i] = sum
end
return sums
