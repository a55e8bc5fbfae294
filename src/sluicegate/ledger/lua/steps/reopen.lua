-- reopen: an expired hold whose worker lives after all: what was charged is held again, whatever the ceiling says.
local function reopen(hold)
  for at = 5, #hold - 1, 5 do
    local kind = hold[at + 2]
    if kind == 'w' or kind == 'o' then shift(hold[at + 1], kind, -given_back(hold, at), amount(hold[at + 3], hold[at + 4], hold[3])) end
  end
  hold[2] = 'o'
end
