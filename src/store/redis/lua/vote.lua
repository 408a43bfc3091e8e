-- vote: executes the requests of a quorum at one of its masters. No claim waits here, so there are no queues. A master that
-- may have lost records gives no vote, and extends none.
-- KEYS[i]           record      string, value = <node>:<claim>:<nonce>:<grant number>
-- KEYS[n+1]         recovering  string, exists while the master has no vote
-- KEYS[n+1+i]       clock       string, the last grant number of the slot of the record
-- ARGV[1]           not_after: the server time in µs after which no record is written; 0 = never
-- ARGV[2]           how long a recovery lasts, in ms, if the key has no end
-- ARGV[at+1]        verb: k = claim, b = renew, and write the record again if it is gone and the key is free, l = leave
-- ARGV[at+2]        holder: <node>:<claim>:<nonce>:
-- ARGV[at+4]        hold in ms: lease + margin
-- ARGV[at+6]        to: of k the proposed number, or 0 for the master's own next number; of b the number of the grant. The
--                   next number of the slot is higher
-- returns           {server time in µs, one reply per request}: integer = granted, its number; 0 = done; N = there was
--                   nothing to leave; B<ms> or B = busy; R<ms> = the master recovers for so many ms; L = late; E<error>
local call, attempt, find, format = redis.call, redis.pcall, string.find, string.format
local words, at = 6, 2
local n = (#ARGV - at) / words
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local late = ARGV[1] + 0
late = late > 0 and us > late

-- MGET answers nil also for a value of another type, which GET refuses.
local values = call('MGET', unpack(KEYS))
local recovering = values[n + 1] and call('PTTL', KEYS[n + 1])
-- Only a user writes the key without an end.
if recovering and recovering < 0 then recovering = ARGV[2] + 0 end

-- The last number of each clock, which several records may have.
local clocks = {}

-- Executes a request and returns its reply. A failing command raises its error.
local function execute(i, verb, holder, hold, to)
  if verb == 'k' and late then return 'L' end
  local key, clock, record = KEYS[i], KEYS[n + 1 + i], values[i] or call('GET', KEYS[i])
  local own = record and find(record, holder, 1, true) == 1
  if verb == 'l' then
    if own then call('DEL', key) end
    return own and 0 or 'N'
  end
  if recovering then return 'R' .. format('%d', recovering) end
  local number, stored = to + 0, clocks[clock] or values[n + 1 + i] or attempt('GET', clock)
  local last = stored and (tonumber(stored) or -1) or 0
  -- Above 2^53 a Lua number plus 1 is the same number. And fences must not restart after a clock that is not a number.
  if last < 0 or last % 1 ~= 0 or last + n >= 9007199254740991 or number >= 9007199254740991 then
    if type(stored) == 'table' and not find(stored.err, 'WRONGTYPE', 1, true) then error(stored) end
    error({ err = 'TENURECLOCK ' .. clock .. ' is no grant number: delete it' })
  end
  local function raise()
    if number > last then
      call('SET', clock, format('%d', number))
      clocks[clock] = number
    end
  end
  if verb == 'b' then
    raise()
  else
    if number == 0 then number = us end
    if number <= last then number = last + 1 end
  end
  if own and verb == 'b' then
    call('PEXPIRE', key, hold)
    return number
  end
  if record then
    local left = call('PTTL', key)
    return 'B' .. (left < 0 and '' or format('%d', left))
  end
  if late then return 'L' end
  -- The clock comes first: a vote without it may be given again.
  raise()
  call('SET', key, holder .. format('%d', number), 'PX', hold)
  return number
end

local replies = { us }
for i = 1, n do
  local well, reply = pcall(execute, i, ARGV[at + 1], ARGV[at + 2], ARGV[at + 4], ARGV[at + 6])
  if not well then reply = 'E' .. (type(reply) == 'table' and reply.err or reply) end
  replies[i + 1], at = reply, at + words
end
return replies
