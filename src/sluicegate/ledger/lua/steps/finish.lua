-- finish: ends a hold at `actual`, one figure for each counter named, behind `from`. Gives back what it held or was charged, adds what was used. Counters are
-- matched by key, never by place. The caller drops the record. Windows whose first mark is reached go, by place, into `reached`.
local reached
local function finish(hold, actual, from)
  local claims  -- by key; nil as long as they stand in the order of the counters
  local same = #hold == 5 * counters + 5
  for i = 1, counters do same = same and hold[5 * i + 1] == KEYS[4 + i] end
  if not same then
    claims = {}
    for at = 5, #hold - 1, 5 do claims[hold[at + 1]] = at end
  end
  for i = 1, counters do
    local key, kind, a, used = KEYS[4 + i], figures[4 * i], figures[4 * i + 2], actual[from + i]
    local used_back, held_back, slot, at = 0, 0, 0, 5 * i
    if claims then
      at = claims[key]
      claims[key] = nil
    end
    if at then
      used_back, held_back = given_back(hold, at)
      slot = hold[at + 5]
    end
    if kind == 'b' then
      if used ~= used_back then
        local deficit, _, remainder, time_ms, full_ms = level(i)
        -- One that has been full meanwhile has forgotten that claim: giving it back would be giving it twice.
        if used > used_back or full_ms <= slot then put_bucket(i, deficit, remainder, time_ms, used - used_back) end
      end
    elseif kind == 's' then
      local current = floor(now_ms / a)
      if used > used_back then
        slide(key, a, current, used - used_back)  -- an overrun counts from now, so that it is repaid in full
      elseif used < used_back and slot >= current - SLICES then
        slide(key, a, slot, used - used_back)
      end
    elseif kind == 'o' then
      local _, held = level(i)
      put_pair(key, 'o', 0, max(0, held - held_back))
    elseif a == 0 or now_ms < a + COUNTER_GRACE_MS then  -- else the window is long over and its counter forgotten
      local before, held, known = level(i)
      before = max(0, max(0, before - used_back) + used)
      put_pair(key, 'w', before, max(0, held - held_back))
      if not known then
        --@made
      end
      if before >= figures[4 * i + 3] then
        reached = reached or {}
        reached[#reached + 1] = i
      end
    end
  end
  for key, at in pairs(claims or {}) do  -- no longer named by the caller: how it refills is not known, its state is
    local kind, slot, used_back, held_back = hold[at + 2], hold[at + 5], given_back(hold, at)
    if kind == 'b' then
      local f = call('HMGET', key, 'd', 'f')
      if f[1] and (f[2] or 0) + 0 <= slot then call('HSET', key, 'd', max(0, f[1] - used_back)) end
    elseif kind == 's' then
      local n = call('HGET', key, slot)
      if n then call('HSET', key, slot, max(0, n - used_back)) end
    else
      shift(key, kind, -used_back, -held_back)
    end
  end
end
