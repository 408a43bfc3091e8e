-- all: of claims that go together none is granted before each was found to be free, and nobody waits for it who may be
-- granted it. What readers share is not free. A free key of those that are not granted is answered by A; the others by
-- what stands in the way.
-- KEYS[i]       the record
-- KEYS[n+1+i]   the queue
-- ARGV[word+2]  the holder
-- returns       A = it is free, and another is not
if together and not late then
  local free, all = {}, true
  for i = 1, n do
    local word = at + (i - 1) * words
    local holder = ARGV[word + 2]
    local owns = records[i] and find(records[i], holder, 1, true) == 1
    -- MGET said nil also if it is no string.
    if not records[i] and pcall(look, i) then
      owns = shared[i] and call('ZSCORE', KEYS[i], 'n' .. holder)
      local well, given, _, rest = true, owns, nil, false
      if queues ~= 0 and not owns then
        well, given, _, rest = pcall(hand_over, i, KEYS[n + 1 + i], nil, holder)
      end
      free[i] = well and not (given or rest or shared[i])
    end
    all = all and (free[i] or owns)
  end
  apart = not all and free
end
