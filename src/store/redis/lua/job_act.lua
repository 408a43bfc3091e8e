-- job_act: pauses or resumes a job for an operator, triggers a run, or cancels a tick. Then it tells the nodes that have the job.
-- A job without a memory is unknown: a typing error creates nothing.
-- KEYS[1]  memory  hash, see job.lua
-- KEYS[2]  record  string, see open.lua
-- ARGV[1]  act: p = pause; r = resume, so that no tick of the pause runs; c = resume, and the ticks may run late; t = trigger;
--            x = cancel
-- ARGV[2]  <by> <why>, percent-encoded
-- ARGV[3]  of t the nominal time in ms, or empty: the server's second; of x the tick, and for a triggered one the ms when it was
--            triggered, or nothing: the trigger that is wanted now
-- returns  {time in µs, reply}: 0 = done; U = the job is unknown; N = it is paused already, or not paused, or a run is wanted
--          already; O = the job is paused, and a tick has begun; F = the nominal time lies in the future; X = the tick has
--          ended, or another one has begun
local call, find, format, match = redis.call, string.find, string.format, string.match
local memory, act = KEYS[1], ARGV[1]
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = (us - us % 1000) / 1000
local now = format('%d', ms)
if call('EXISTS', memory) == 0 then return { us, 'U' } end
local found = call('HMGET', memory, 'paused', 'wanted', 'mark', 'attempt', 'done', 'runs')
local paused, wanted = found[1], found[2]
local wanted_tick, wanted_since = match(wanted or '', '^(%d+):%d+ (%d+) ')
-- A tick of the schedule has begun and has not ended.
local is_begun = (tonumber(found[4]) or 0) > 0 and found[5] ~= '1'

local r, running = match(found[6] or '', '^(%d+):(%d+)$')

-- Returns the latest run if it is of this tick: its place in the history, and the number of its grant.
local function latest_run(tick)
  local place = r and format('%d', r % 100)
  local of, number = match(place and call('HGET', memory, 'h' .. place) or '', '^' .. (r or '') .. ':(%d+):%d+:(%d+):')
  if of == tick then return place, number end
end

-- Returns the holder of the record and its number, also of a revoked one.
local function owner()
  local record = redis.pcall('GET', KEYS[2])
  return match(type(record) == 'string' and record or '', '^!?((%x+):(%d+):(%x+):(%d+))$')
end

-- Ends the run of a cancelled tick, unless it was lost before, and revokes its lease, which keeps its end: the next run begins when
-- this one was told, or when its lease has ended.
local function end_run(tick)
  local place, number = latest_run(tick)
  if not place then return end
  call('HDEL', memory, 'winner')
  local record, node, claim, nonce, grant = owner()
  if grant ~= number then return end
  if running == tick then
    local took = math.max(0, us - number)
    local ending = format(':cancelled:%d:0:', (took - took % 1000) / 1000) .. match(ARGV[2], ' (.*)$')
    call('HSET', memory, 'runs', r .. ':0', 'e' .. place, r .. ending)
  end
  if call('GET', KEYS[2]) ~= record then return end
  revoke_record(KEYS[2], record)
  redis.pcall('PUBLISH', 'tenure1:n:' .. node, '1 revoked job ' .. claim .. ' ' .. nonce .. ' 0 ' .. KEYS[2])
end

-- Redis refuses only the first write of a script for want of memory. This write is first, and needs no memory.
call('HDEL', memory, '-')
if act == 'p' then
  if paused then return { us, 'N' } end
  call('HSET', memory, 'paused', now .. ' ' .. ARGV[2])
elseif act == 't' then
  local nominal = ARGV[3] == '' and ms - ms % 1000 or ARGV[3] + 0
  if wanted_since then
    local _, number = latest_run(wanted_tick)
    local _, _, _, _, grant = owner()
    if ms <= wanted_since + 86400000 or number and number == grant then return { us, 'N' } end
  end
  if nominal > ms then return { us, 'F' } end
  if paused and is_begun then return { us, 'O' } end
  call('HSET', memory, 'wanted', format('%d:0 ', 4503599627370496 + nominal) .. now .. ' ' .. ARGV[2])
elseif act == 'x' then
  local tick, since = match(ARGV[3], '^(%d+) ?(%d*)$')
  local is_wanted = tick == wanted_tick and (since == '' or since == wanted_since)
  if not is_wanted and not (tick == found[3] and is_begun) then return { us, 'X' } end
  -- The tick is over first: a failure after that must not let it run.
  if is_wanted then call('HDEL', memory, 'wanted') else call('HSET', memory, 'done', '1') end
  if find(call('HGET', memory, 'saved') or '', tick .. ':', 1, true) == 1 then call('HDEL', memory, 'saved', 'data') end
  end_run(tick)
else
  if not paused then return { us, 'N' } end
  -- The ticks are passed over first: a failure between the two must not let them run.
  if act == 'r' and (tonumber(call('HGET', memory, 'skipped') or '0') or 0) < ms then
    call('HSET', memory, 'skipped', now)
  end
  call('HSET', memory, 'resumed', now)
  call('HDEL', memory, 'paused')
end

-- Correctness does not depend on this message.
for _, field in ipairs(call('HKEYS', memory)) do
  local node = match(field, '^w(%x+)$')
  local ends = node and match(call('HGET', memory, field) or '', '^(%d+):')
  if ends and ends + 0 >= ms then redis.pcall('PUBLISH', 'tenure1:n:' .. node, '1 changed job ' .. KEYS[2]) end
end
return { us, '0' }
