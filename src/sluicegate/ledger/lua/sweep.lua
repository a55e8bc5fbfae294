#!lua flags=allow-oom
-- sweep: charges holds of one tree whose expiry has passed, oldest first; forgets old records.
--
-- KEYS  1 holds, 2 expiries
-- ARGV  1 state that expired holds get (h, s), 2 how many at most
-- Returns {now_ms, {id, tag, g, seen, key, amount, key, amount ...} ...}.
--@base
--@charge
local swept = charge(call('ZRANGEBYSCORE', EXPIRIES, '-inf', now_ms, 'LIMIT', '0', ARGV[2]), ARGV[1])
return {now_ms, unpack(swept or {})}
