-- charge: charges holds whose expiry has passed as `expired_state` says (h, s), forgets old records. `concurrent` is released, refilling
-- counters keep what they took. Of a hold that has an expiry and no record, the record was lost: then nothing is charged.
-- Returns nil or a list of {id, tag, g, seen, key, amount, key, amount ...}.
local function charge(ids, expired_state)
  local swept, holds = nil, {}
  for i, id in ipairs(ids) do
    holds[i] = read_hold(id)
    if not holds[i] then
      lost = 'the record of a hold is missing'
      return nil
    end
  end
  for i, id in ipairs(ids) do
    local hold = holds[i]
    if hold[2] ~= 'o' then
      drop_hold(id)
    else
      hold[2] = expired_state
      local entry = {id, hold[5], hold[3], hold[4]}
      for at = 5, #hold - 1, 5 do
        local key, kind, charged = hold[at + 1], hold[at + 2], given_back(hold, at)
        if kind == 'w' or kind == 'o' then shift(key, kind, charged, -amount(hold[at + 3], hold[at + 4], hold[3])) end
        entry[#entry + 1] = key
        entry[#entry + 1] = charged
      end
      put_hold(id, hold, now_ms + 604800000)  -- 7 days, for a late settle to correct it
      swept = swept or {}
      swept[#swept + 1] = entry
    end
  end
  return swept
end
