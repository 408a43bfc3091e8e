-- open: read what every verb needs, in three calls for the whole batch.
-- KEYS[1..n]        the records   string, value = <node>:<claim>:<nonce>:<grant number>
-- KEYS[n+1]         the clock     string, the last grant number, never expires
-- KEYS[n+2..2n+1]   the queues    zset, only while somebody waits; see queue.lua
--                   how many n is stands before all, as jobs have more keys
-- ARGV[1]  highest grant number that the sending node saw
-- ARGV[2]  not_after: server time in µs after which claims and yields are late; 0 for none
-- ARGV[3]  flags: p = probe for subscribers before choosing, q = some request needs to know whether anybody waits
-- returns  an error for the whole batch when the clock is unusable, before anything is written
local byte, find, format, match, sub = string.byte, string.find, string.format, string.match, string.sub

-- Once: within a script TIME moves on while expiry stands still (Redis 7.0), newer servers freeze both.
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = (us - us % 1000) / 1000

-- MGET answers nil for a wrong type; whoever finds nil makes sure by SET NX or GET before it believes it.
local records = call('MGET', unpack(KEYS, 1, n + 1))

local stored = records[n + 1]
stored = stored and (tonumber(stored) or -1) or 0
local last = tonumber(ARGV[1])
if stored > last then last = stored end
-- Above 2^53 a Lua number plus one is the same number; a clock that is no number must not restart the fences.
if not (stored >= 0 and last + n < 9007199254740991) then
  return redis.error_reply('TENURECLOCK ' .. KEYS[n + 1] .. ' does not hold a grant number')
end
local last_text

local late = tonumber(ARGV[2])
late = late > 0 and us > late
local probes = find(ARGV[3], 'p', 1, true)

-- How many of the keys have a queue; nil when nobody counted.
local queues
if find(ARGV[3], 'q', 1, true) then
  queues = call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1))
end
