-- all: of claims that go together none is granted before each was found to be free, or to be had beside readers by one that
-- reads, and nobody waits for it who may be granted it or comes first. What can be had of those that are not granted is
-- answered by A; the others by what stands in the way.
-- KEYS[i]       the record
-- KEYS[n+1+i]   the queue
-- ARGV[word+2]  the holder
-- ARGV[word+5]  tick: 1 for those that read
-- returns       A = it is free, and another is not
if together and not late then
  local free, all = {}, true
  for i = first, n do
    local word = at + (i - first) * words
    local holder = ARGV[word + 2]
    local owns = records[i] and find(records[i], holder, 1, true) == 1
    -- MGET said nil also if it is no string.
    if not records[i] and pcall(look, i) then
      owns = shared[i] and call('ZSCORE', KEYS[i], 'n' .. holder)
      local well, given, own, rest, blocked = true, owns, nil, false
      if queues ~= 0 and not owns then
        well, given, own, rest, blocked = pcall(hand_over, i, KEYS[n + 1 + i], nil, holder)
        owns = well and own
      end
      free[i] = well and not (given or owns or rest or blocked or shared[i] and not fits(i, ARGV[word + 5]))
    end
    all = all and (free[i] or owns)
  end
  apart = not all and free
end
