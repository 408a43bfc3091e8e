-- open: reads the records, the clock and the time for the whole batch, and defines where the words of a request are. The
-- Rust side (script.rs) puts one line before it: `kind` is lock, job, semaphore, latch or election.
-- KEYS[1..n]         records   string, value = <node>:<claim>:<nonce>:<grant number>, with a 0 before the number while the owner of
--                              a lock may keep its lease without a holder; zset while claims share the key,
--                              see weighted.lua; hash of a latch, see latch.lua
-- KEYS[n+1]          clock     string, the last grant number, never expires
-- KEYS[n+2]          recovering  string, why the server recovers; exists while it grants nothing
-- KEYS[n+3..2n+2]    queues    zset, exists only while a claim waits; see queue.lua, for latches latch.lua
-- KEYS[2n+3..3n+2]   memories  hash, only of jobs and elections; see job.lua and elect.lua
-- ARGV[1]     highest grant number that the sending node has seen
-- ARGV[2]     not_after: the server time in µs after which claims and yields are late; 0 = never
-- ARGV[3]     flags: p = ask for subscribers before a waiter is chosen; a = the claims go together, and all are granted
--             or none; u = too few Sentinels confirmed the link: grant nothing; <ms> = the poll gap: leave locks free for so long now and then
-- ARGV[4]     how long a recovery lasts that this batch begins, in ms
-- ARGV[at+1]  verb of a request, whose words follow `at`:
--               c = claim, w = claim and wait, r = renew, l = leave, f = finish, y = yield, p = pass, a = pass to
--               an adopter, e = extend;
--               calls: o, x, z, v, m, s (ask.lua), u (used.lua, latch.lua), t, n, h (latch.lua), g, i (elect.lua)
-- ARGV[at+2]  holder: <node>:<claim>:<nonce>:
-- ARGV[at+3]  lease in ms
-- ARGV[at+4]  hold in ms: lease + margin
-- ARGV[at+5]  tick: of a job, when the tick is due, in ms since 1970; of a lock 1 for a reader,
--             else 0; of a semaphore <permits>/<capacity>; of a latch see latch.lua; of an election see elect.lua
-- ARGV[at+6]  to: of y, p and a the holder that goes on; of c and w what to do behind an earlier tick (claim.lua); of r
--             the number of an owner's grant, after a v if a candidate has a value (elect.lua), and after an a if the
--             lease is fixed; of f how the run ended (finish.lua); of calls see their files; otherwise empty
-- returns     an error for the whole batch if the clock is unusable, before any write; {server time in µs, E<error> for
--             each request} if a recovery must begin and the server refuses every write
local call, attempt, find, format = redis.call, redis.pcall, string.find, string.format
local words, at = 6, 4
local n = (#ARGV - at) / words

-- TIME is read once: in Redis 7.0 it advances within a script while expiry does not. Newer servers freeze both.
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = (us - us % 1000) / 1000

-- MGET answers nil also for a value of another type. A function that finds nil must check the type.
local records = call('MGET', unpack(KEYS, 1, n + 2))

local clock = records[n + 1] or attempt('GET', KEYS[n + 1])
local stored = clock and (tonumber(clock) or -1) or 0
local seen = ARGV[1] + 0
local last = seen > stored and seen or stored
-- Above 2^53 a Lua number plus 1 is the same number. And fences must not restart after a clock that is not a number.
if not (stored >= 0 and stored % 1 == 0 and last + n < 9007199254740991) then
  -- A user without the right to read it is told that.
  if type(clock) == 'table' and not find(clock.err, 'WRONGTYPE', 1, true) then return clock end
  return redis.error_reply('TENURECLOCK ' .. KEYS[n + 1] .. ' is no grant number: delete it')
end
local last_text

local late = ARGV[2] + 0
late = late > 0 and us > late
local together = find(ARGV[3], 'a', 1, true)
-- Room for the first reply: to grow a table costs as much as a call.
local replies = n > 0 and { us, 0 } or { us }

-- What is left of a recovery, in ms; nil without a recovery. Meanwhile nothing is granted.
local recovering
if records[n + 2] then
  recovering = call('PTTL', KEYS[n + 2])
  -- Only a user writes the key without an end.
  if recovering < 0 then recovering = ARGV[4] + 0 end
end
-- The sender has seen a number that this server does not know: the server has lost that grant. The clock is then raised,
-- so that the number shows a loss only once.
if seen > stored then
  last_text = ARGV[1]
  if not recovering or recovering < ARGV[4] + 0 then
    recovering = ARGV[4] + 0
    -- PEXPIRE comes first because it needs no memory: the server does not refuse the next write for want of memory.
    attempt('PEXPIRE', KEYS[n + 2], ARGV[4])
    local begun = attempt('SET', KEYS[n + 2], 'number', 'PX', ARGV[4])
    -- The server refuses every write. The clock was not raised, so the next batch begins the recovery.
    if begun.err then
      for i = 1, n do replies[i + 1] = 'E' .. begun.err end
      return replies
    end
  end
end

-- An unconfirmed link grants nothing either, until its claims ask again. Set only if the server does not recover, because
-- nothing is asserted then.
local unconfirmed = not recovering and find(ARGV[3], 'u', 1, true)
if unconfirmed then recovering = 1000 end

-- The first request that plain.lua did not execute.
local first = 1
-- The number of keys with a queue, and the first waiter if the batch is one leave; nil before they are read.
local queues, head
