#!lua flags=allow-oom
-- renew: puts off the expiry of open holds and reopens expired ones; ignores others.
--
-- KEYS  1 holds, 2 expiries
-- ARGV  1 request (msgpack): ttl_ms, {hold id, hold id ...}
-- Returns {now_ms}.
--@base
--@reopen
local ttl_ms, ids = unpack(cmsgpack.unpack(ARGV[1]))
for _, id in ipairs(ids) do
  local hold = read_hold(id)
  if hold and hold[2] == 'o' then
    call('ZADD', EXPIRIES, now_ms + ttl_ms, id)
  elseif hold and hold[2] ~= 'f' and hold[2] ~= 'c' then
    reopen(hold)
    put_hold(id, hold, now_ms + ttl_ms)
  end
end
return {now_ms}
