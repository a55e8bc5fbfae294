-- reach: of the windows named by place in `reached`, the marks (ARGV[2], msgpack: for each counter a list of amounts) that were reached and that
-- nobody was told of: appended to `answer` as counter, mark, both from 0.
local marks = cmsgpack.unpack(ARGV[2])
for _, i in ipairs(reached) do
  local f = call('HMGET', KEYS[4 + i], 'u', 'm')
  local used, told = (f[1] or -1) + 0, (f[2] or 0) + 0
  local before = told
  for mark, at in ipairs(marks[i]) do
    local bit = 2 ^ (mark - 1)
    if used >= at and floor(told / bit) % 2 == 0 then
      told = told + bit
      answer[#answer + 1] = i - 1
      answer[#answer + 1] = mark - 1
    end
  end
  if told > before then call('HSET', KEYS[4 + i], 'm', told) end
end
