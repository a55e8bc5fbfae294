#!lua flags=no-writes
-- peek: the states of counters, changing nothing.
--
-- KEYS  see steps.lua
-- ARGV  1 figures: as admit's
-- Returns {0, now_ms, 0, 0, state, state, ...}, two figures of state for each counter.
local figures = cmsgpack.unpack(ARGV[1])
local answer = {0, now_ms, 0, 0}
for i = 1, #KEYS - 2 do answer[3 + 2 * i], answer[4 + 2 * i] = state(figures, i) end
return answer
