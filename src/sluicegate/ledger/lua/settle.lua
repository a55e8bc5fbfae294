#!lua flags=allow-oom
-- settle: replaces a hold by what was used. Never refused, not for want of memory either; may exceed the hold.
--
-- KEYS  1 holds, 2 expiries, 3 index, 4 epoch, 5.. counters
-- ARGV  1 figures: as admit's
--       2 marks (msgpack): for each counter a list of amounts
--       3 request (msgpack): known, hold id, mode (settle, force, cancel), actual, actual ...
-- Returns {status, now_ms, seq, counter, mark, counter, mark ...}: the marks newly reached, both numbers from 0; behind them, when late, what the sweep
-- told of the hold: {id, tag, g, seen, key, amount, key, amount ...}.
-- status: 0 settled, 1 already, 2 late, 3 forced, 4 cancelled; 5 lost, then why instead of seq.
--@base
--@counters
--@back
--@finish
local CANCELLED_KEPT_MS, FORCED_KEPT_MS = 60000, 604800000
local request = {cmsgpack.unpack(ARGV[3])}
local known, id, mode = request[1], request[2], request[3]
--@advance

if mode == 'cancel' then
  for i = 1, counters do request[3 + i] = 0 end
end
local hold = read_hold(id)
if not hold and call('HEXISTS', HOLDS, '') == 0 then lost = 'the records of holds are missing' end
--@gone
if not hold and mode == 'cancel' then
  put_hold(id, {1, 'c', 0, 0, ''}, now_ms + CANCELLED_KEPT_MS)
  return {4, now_ms, seq}
end
local forced = mode == 'force' and (not hold or hold[2] == 'c')  -- c: its admit timed out, then it was served all the same
if not forced and (not hold or hold[2] == 'f' or hold[2] == 'c') then return {1, now_ms, seq} end

if forced then hold = {1, 'o', 0, 0, ''} end
finish(hold, request, 3)
--@gone
if mode == 'force' then  -- sent again, it would charge an id that is unknown by then
  put_hold(id, {1, 'f', 0, 0, ''}, now_ms + FORCED_KEPT_MS)
else
  drop_hold(id)
end
local answer = {forced and 3 or hold[2] ~= 'o' and 2 or mode == 'cancel' and 4 or 0, now_ms, seq}
if reached then
  --@reach
end
if answer[1] == 2 then
  local expired = {id, hold[5], hold[3], hold[4]}
  for at = 5, #hold - 1, 5 do
    expired[#expired + 1] = hold[at + 1]
    expired[#expired + 1] = (given_back(hold, at))
  end
  answer[#answer + 1] = expired
end
return answer
