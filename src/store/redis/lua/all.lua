-- all: checks claims that go together. They are granted only if every key is free, or shared by readers that a reader
-- may join. No live waiter may come first. If one claim cannot be granted, none is: a claim for a key that is free is
-- answered A, and each other claim is answered as if it had come alone.
-- KEYS[i]       record
-- KEYS[n+2+i]   queue
-- ARGV[word+2]  holder
-- ARGV[word+5]  tick: 1 for a reader, else 0
-- returns       nothing: `apart` names the claims to answer A, which is: this key is free, and another key is not
if together and not (late or recovering) then
  local free, all = {}, true
  for i = first, n do
    local word = at + (i - first) * words
    local holder = ARGV[word + 2]
    local owns = records[i] and find(records[i], holder, 1, true) == 1
    -- MGET also answers nil for a value that is not a string.
    if not records[i] and pcall(look, i) then
      owns = shared[i] and call('ZSCORE', KEYS[i], 'n' .. holder)
      local well, given, own, rest, blocked = true, owns, nil, false
      if queues ~= 0 and not owns then
        well, given, own, rest, blocked = pcall(hand_over, i, KEYS[n + 2 + i], nil, holder)
        owns = well and own
      end
      free[i] = well and not (given or owns or rest or blocked or shared[i] and not fits(i, ARGV[word + 5]))
    end
    all = all and (free[i] or owns)
  end
  apart = not all and free
end
