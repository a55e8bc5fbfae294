#!lua flags=no-writes
-- peek: the states of counters, changing nothing, whatever the state of their tree. One that cannot be read counts as missing.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch, 5.. counters
-- ARGV  1 figures: as admit's
-- Returns {0, now_ms, 0, 0, 0, state, state ...}, two figures of state for each counter.
--@base
--@counters
local answer = {0, now_ms, 0, 0, 0}
for i = 1, counters do
  local read, first, second = pcall(level, i)
  answer[4 + 2 * i], answer[5 + 2 * i] = read and first or 0, read and second or 0
end
return answer
