-- batch: every request from the first that is not plain, in turn, each answered on its own.
-- KEYS[i]           the record
-- KEYS[n+1]         the clock
-- ARGV[at+1..at+6]  all words of a request
-- returns           {server time in µs, one reply per request}: what its verb answers, W<number>:<attempt> for the
--                   number of a tick, L = late, E<error>
function t.treat(i, verb, holder, lease, hold, tick, to)
  if t.late and (verb == 'c' or verb == 'w' or verb == 'y') then return 'L' end
  -- MGET said nil also if it is no string. A claim of a lock finds out when it takes it.
  if not t.records[i] and (t.jobs or verb ~= 'w' and verb ~= 'c') then redis.call('GET', KEYS[i]) end
  local job, entry = nil, holder .. lease .. ':' .. hold
  if t.jobs then
    job, entry, tick = t.recall(i), entry .. ':' .. tick, tick + 0
  end
  local reply
  if verb == 'l' then
    reply = t.leave(i, job, holder, entry)
  elseif verb == 'r' then
    reply = t.renew(i, job, holder, entry, lease, hold, tick)
  elseif verb == 'f' then
    reply = t.finish(i, job, holder, entry, tick)
  elseif verb == 'y' then
    reply = t.yield(i, job, holder, entry, lease, hold, tick, to)
  else
    reply = t.claim(i, job, verb == 'w', holder, entry, lease, hold, tick)
  end
  if job and type(reply) == 'number' and reply > 0 then return string.format('W%d:%d', reply, job.attempt) end
  return reply
end

for i = first, n do
  local well, reply = pcall(t.treat, i, unpack(ARGV, at + 1, at + 6))
  replies[i + 1] = well and reply or 'E' .. (type(reply) == 'table' and reply.err or reply)
  at = at + words
end
-- As in plain.lua: after the grants, and no loss should it fail.
if t.last_text then attempt('SET', KEYS[n + 1], t.last_text) end
return replies
