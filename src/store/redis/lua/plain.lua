-- plain: the two cases that are nearly all of the load, a free key that is claimed and an owned one that is left with
-- nobody waiting, in as few calls as can be; up to the first request that is neither. It makes no closure, and the
-- rules that follow are closures: making them costs as much as two calls.
-- KEYS[i]          the record
-- KEYS[n+1]        the clock
-- KEYS[n+1+i]      the queue
-- ARGV[at+1]       verb
-- ARGV[at+2]       holder
-- ARGV[at+4]       hold
-- ARGV[at+5]       tick
-- returns          {server time in µs, one reply per request} when all were plain: integer = granted, its number;
--                  0 = done; E<error>
-- Of claims that go together none is granted before all are known to be free.
if together then queues = call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1)) end
if not together or not late and queues == 0 and call('EXISTS', unpack(KEYS, 1, n)) == 0 then
  local leaving, leaves = nil, 0
  for i = 1, n do
    local verb, holder, record = ARGV[at + 1], ARGV[at + 2], records[i]
    local leave = verb == 'l' and record and find(record, holder, 1, true) == 1
    if not leave and (record or late or verb ~= 'w' and verb ~= 'c' or ARGV[at + 5] ~= '0') then break end
    if leave and n == 1 then
      -- Instead of EXISTS, as the hand-over wants to know who is first.
      head = attempt('ZRANGE', KEYS[n + 1 + i], '0', '0')
      queues = head.err and 1 or #head
    end
    queues = queues or call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1))
    if queues > 0 then break end
    local reply = 0
    if leave then
      leaves = leaves + 1
      if leaving then leaving[leaves] = KEYS[i] else leaving = { KEYS[i] } end
    else
      local number = last + 1
      if number < us then number = us end
      local text = format('%d', number)
      local set = attempt('SET', KEYS[i], holder .. text, 'NX', 'PX', ARGV[at + 4])
      -- It is no string.
      if not set then break end
      if set.err then
        reply = 'E' .. set.err
      else
        last, last_text, reply = number, text, number
      end
    end
    replies[i + 1], first, at = reply, i + 1, at + words
  end
  -- A batch names a key once, so nobody misses a deletion until now.
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
    -- After the grants, so that a release without memory is never refused for the clock's sake. Should this fail, the
    -- time in µs keeps the numbers growing.
    if last_text then attempt('SET', KEYS[n + 1], last_text) end
    return replies
  end
end
