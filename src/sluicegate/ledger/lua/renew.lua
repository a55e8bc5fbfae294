#!lua flags=allow-oom
-- renew: puts off the expiry of open holds and reopens expired ones; ignores others.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch
-- ARGV  1 request (msgpack): known, ttl_ms, {hold id, hold id ...}
-- Returns {0, now_ms, seq}; or {5, now_ms, why}: lost.
--@base
--@back
--@reopen
local known, ttl_ms, ids = cmsgpack.unpack(ARGV[1])
--@advance
for _, id in ipairs(ids) do
  local hold = read_hold(id)
  if hold and hold[2] == 'o' then
    call('ZADD', EXPIRIES, now_ms + ttl_ms, id)
  elseif hold and hold[2] ~= 'f' and hold[2] ~= 'c' then
    reopen(hold)
    put_hold(id, hold, now_ms + ttl_ms)
  end
end
return {0, now_ms, seq}
