-- plain: executes the two most frequent requests in few calls: a claim for a free key, and a leave of an owned key
-- without waiters. It stops at the first other request, and at a claim while the server recovers. The rules in the later
-- files are closures; to create them costs as much as two calls, and this file creates none. For claims that go together,
-- it grants only if every key is free.
-- KEYS[i]          record
-- KEYS[n+1]        clock
-- KEYS[n+2+i]      queue
-- ARGV[at+1]       verb
-- ARGV[at+2]       holder
-- ARGV[at+4]       hold
-- ARGV[at+5]       tick
-- ARGV[at+6]       to: of a claim the mark, see claim.lua
-- returns          {server time in µs, one reply per request} if all requests were executed here: integer = granted, its
--                  number; 0 = done; E<error>
if together then queues = call('EXISTS', unpack(KEYS, n + 3, 2 * n + 2)) end
if not together or not late and queues == 0 and call('EXISTS', unpack(KEYS, 1, n)) == 0 then
  local leaving, leaves = nil, 0
  for i = 1, n do
    local verb, holder, record = ARGV[at + 1], ARGV[at + 2], records[i]
    local leave = verb == 'l' and record and find(record, holder, 1, true) == 1
    if not leave and (record or late or recovering or verb ~= 'w' and verb ~= 'c' or ARGV[at + 5] ~= '0') then break end
    if leave and n == 1 then
      -- ZRANGE replaces EXISTS here, because the hand-over also needs the first waiter.
      head = attempt('ZRANGE', KEYS[n + 2 + i], '0', '0')
      queues = head.err and 1 or #head
    end
    queues = queues or call('EXISTS', unpack(KEYS, n + 3, 2 * n + 2))
    if queues > 0 then break end
    local reply = 0
    if leave then
      leaves = leaves + 1
      if leaving then leaving[leaves] = KEYS[i] else leaving = { KEYS[i] } end
    else
      local number = last + 1
      if number < us then number = us end
      local text = format('%d', number)
      local set = attempt('SET', KEYS[i], holder .. ARGV[at + 6] .. text, 'NX', 'PX', ARGV[at + 4])
      -- The value is not a string.
      if not set then break end
      if set.err then
        reply = 'E' .. set.err
      else
        last, last_text, reply = number, text, number
      end
    end
    replies[i + 1], first, at = reply, i + 1, at + words
  end
  -- The deletions can come last, because a batch names each key once.
  if leaves > 0 then
    local gone = attempt('DEL', unpack(leaving))
    if type(gone) == 'table' then
      local place = 1
      for i = 1, first - 1 do
        if KEYS[i] == leaving[place] then
          replies[i + 1], place = 'E' .. gone.err, place + 1
        end
      end
    end
  end
  if first > n then
    -- The clock comes after the grants, so that the clock cannot fail a release when memory is short. If this write
    -- fails, the time in µs still makes the numbers grow.
    if last_text then attempt('SET', KEYS[n + 1], last_text) end
    return replies
  end
end
