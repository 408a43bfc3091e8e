-- job_act: pauses or resumes a job for an operator. A job without a memory is unknown: a typing error creates nothing.
-- KEYS[1]  memory  hash, see job.lua
-- ARGV[1]  act: p = pause; r = resume, so that no tick of the pause runs; c = resume, and the ticks may run late
-- ARGV[2]  <by> <why>, percent-encoded
-- returns  {time in µs, reply}: 0 = done; U = the job is unknown; N = it is paused already, or not paused
local call, format = redis.call, string.format
local memory, act = KEYS[1], ARGV[1]
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = format('%d', (us - us % 1000) / 1000)
if call('EXISTS', memory) == 0 then return { us, 'U' } end
local paused = call('HGET', memory, 'paused')
if act == 'p' then
  if paused then return { us, 'N' } end
  call('HSET', memory, 'paused', ms .. ' ' .. ARGV[2])
  return { us, '0' }
end
if not paused then return { us, 'N' } end
-- The ticks are passed over first: a failure between the two must not let them run.
if act == 'r' and (tonumber(call('HGET', memory, 'skipped') or '0') or 0) < tonumber(ms) then
  call('HSET', memory, 'skipped', ms)
end
call('HDEL', memory, 'paused')
return { us, '0' }
