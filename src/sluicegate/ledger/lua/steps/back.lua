-- back: what holds give back, and counters moved by a claim alone.

-- What ending a hold at nothing used gives back to the counter of the claim behind `at`: from used (deficit, slice), from held. The former of an
-- expired hold is what its expiry has charged.
local function given_back(hold, at)
  local kind, g = hold[at + 2], hold[3]
  if kind == 'w' or kind == 'o' then
    if hold[2] == 'o' then return 0, amount(hold[at + 3], hold[at + 4], g) end
    if kind == 'o' then return 0, 0 end
    if hold[2] == 's' then g = hold[4] end
  end
  return amount(hold[at + 3], hold[at + 4], g), 0
end

-- Moves a w or o counter by its claim alone. A window that is forgotten stays so: made anew without its end it would never expire.
local function shift(key, kind, more_used, more_held)
  local f = call('HMGET', key, 'u', 'h')
  if f[1] or kind == 'o' then put_pair(key, kind, max(0, (f[1] or 0) + more_used), max(0, (f[2] or 0) + more_held)) end
end
