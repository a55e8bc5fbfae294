#!lua flags=allow-oom
-- sweep: charges holds of one tree whose expiry has passed; forgets old records.
--
-- KEYS  1 holds, 2 expiries
-- ARGV  1 state that expired holds get (h, s), 2 how many at most
-- Returns {now_ms, {id, tag, g, seen, key, amount, key, amount ...}, ...}.
return {now_ms, unpack(sweep(ARGV[1], ARGV[2]))}
