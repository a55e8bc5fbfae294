#!lua flags=allow-oom
-- warn: the marks of windows that were reached and that nobody was told of; now somebody is.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch, 5.. counters
-- ARGV  1 known
--       2 marks (msgpack): for each counter a list of amounts
-- Returns {0, now_ms, seq, counter, mark, counter, mark ...}, both numbers from 0; or {5, now_ms, why}: lost.
--@base
local known = ARGV[1] + 0
--@advance
local answer, reached = {0, now_ms, seq}, {}
for i = 1, #cmsgpack.unpack(ARGV[2]) do reached[i] = i end
--@reach
return answer
