-- gone: ends a script that has found something lost, and the epoch for everybody.
if lost then
  call('DEL', EPOCH)
  return {5, now_ms, lost, 0, 0}
end
