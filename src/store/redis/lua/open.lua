-- open: what every request needs, read in two calls for the whole batch, and where its words stand. Before it stands one line,
-- by script.rs: `kind`, which is lock, job, semaphore, latch or election.
-- KEYS[1..n]         the records   string, value = <node>:<claim>:<nonce>:<grant number>; zset while claims share the key,
--                                  see weighted.lua; hash of latches, see latch.lua
-- KEYS[n+1]          the clock     string, the last grant number, never expires
-- KEYS[n+2..2n+1]    the queues    zset, only while somebody waits; see queue.lua, of latches latch.lua
-- KEYS[2n+2..3n+1]   the memories  hash, only of jobs and elections; see job.lua and elect.lua
-- ARGV[1]     highest grant number that the sending node saw
-- ARGV[2]     not_after: server time in µs after which claims and yields are late; 0 for none
-- ARGV[3]     flags: p = probe for subscribers before choosing; a = all are claims that do not wait, and every one is
--             granted or none is; <ms> = leave locks free now and then, for so long
-- ARGV[at+1]  of each request, whose words stand behind `at`: its verb
--               c = claim, w = claim and wait, r = renew, l = leave, f = finish, y = yield, p = pass, e = extend; and what is
--               asked, see ask.lua, used.lua and latch.lua: o, z, v, m, s, u, t, n, h
-- ARGV[at+2]  holder: <node>:<claim>:<nonce>:
-- ARGV[at+3]  lease in ms
-- ARGV[at+4]  hold in ms: the lease and the margin
-- ARGV[at+5]  tick: when it is due, in ms since 1970; of a lock 1 for readers and else 0; of a semaphore
--             <permits>/<of so many>; of a latch see latch.lua. Of o: how old a tick may be
-- ARGV[at+6]  to: the holder under which a yield or pass goes on, whose turn it is of c and w (see claim.lua), `well` of
--             f, the fingerprint of o, <seq>:<data> of s; of a latch see latch.lua; empty for the others
-- returns     an error for the whole batch when the clock is unusable, before anything is written
local call, attempt, find, format = redis.call, redis.pcall, string.find, string.format
local words, at = 6, 3
local n = (#ARGV - at) / words

-- Once: within a script TIME moves on while expiry stands still (Redis 7.0), newer servers freeze both.
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = (us - us % 1000) / 1000

-- MGET answers nil for a wrong type; whoever finds nil makes sure before it believes it.
local records = call('MGET', unpack(KEYS, 1, n + 1))

local stored = records[n + 1] or attempt('GET', KEYS[n + 1])
stored = stored and (tonumber(stored) or -1) or 0
local last = ARGV[1] + 0
if stored > last then last = stored end
-- Above 2^53 a Lua number plus one is the same number; a clock that is no number must not restart the fences.
if not (stored >= 0 and stored % 1 == 0 and last + n < 9007199254740991) then
  return redis.error_reply('TENURECLOCK ' .. KEYS[n + 1] .. ' is no grant number: delete it')
end
local last_text

local late = ARGV[2] + 0
late = late > 0 and us > late
local together = find(ARGV[3], 'a', 1, true)
-- Room for the first reply, as a table that grows costs as much as a call.
local replies = n > 0 and { us, 0 } or { us }
-- The first request that was not done in the short way, see plain.lua.
local first = 1
-- How many of the keys have a queue, and of a lone leave who is first in it; nil until somebody looks.
local queues, head
