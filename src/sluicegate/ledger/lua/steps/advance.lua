-- advance: raises the sequence of the tree's epoch. One that is not there, or not above `known`, which this worker has seen, was lost or rolled back:
-- it ends for everybody. What a script that finds something lost has written by then does not matter, since the seeding wipes it.
local seq = call('INCR', EPOCH)
if seq == 1 or seq <= known then
  call('DEL', EPOCH)
  return {5, now_ms, 'the epoch is gone, or behind what was seen of it', 0, 0}
end
