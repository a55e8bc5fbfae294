-- made: the window `key`, which ends at `a` (0: never), is new: it goes into the index and gets its expiry.
call('ZADD', INDEX, a > 0 and a + COUNTER_GRACE_MS or FAR_MS, key)
if a > 0 then call('PEXPIREAT', key, a + COUNTER_GRACE_MS) end
