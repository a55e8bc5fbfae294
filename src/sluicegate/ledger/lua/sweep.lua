#!lua flags=allow-oom
-- sweep: charges holds of one tree whose expiry has passed, oldest first; forgets old records, and in the index windows that have expired.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch
-- ARGV  1 state that expired holds get (h, s), 2 how many at most, 3 known
-- Returns {0, now_ms, seq, {id, tag, g, seen, key, amount, key, amount ...} ...}; or {5, now_ms, why}: lost.
--@base
--@back
--@charge
local known = ARGV[3] + 0
--@advance
call('ZREMRANGEBYSCORE', INDEX, '-inf', now_ms)
local swept = charge(call('ZRANGEBYSCORE', EXPIRIES, '-inf', now_ms, 'LIMIT', '0', ARGV[2]), ARGV[1])
--@gone
return {0, now_ms, seq, unpack(swept or {})}
