-- batch: every request in turn, each answered on its own; the two cases that are nearly all of the load, a free
-- key that is claimed and an owned one that is left with nobody waiting, in one call each.
-- KEYS[i]      the record
-- KEYS[n+1]    the clock
-- ARGV[at]     verb: c, w (claim), r (renew), l (leave), y (yield)
-- ARGV[at+1]   holder
-- ARGV[at+3]   hold in ms
-- returns      {server time in µs, one reply per request}
local replies, at = { us }, 4
local claim, renew, leave, yield
for i = 1, n do
  local verb, record = ARGV[at], records[i]
  local reply
  if queues == 0 and not record and not late and (verb == 'c' or verb == 'w') then
    local number = last + 1
    if number < us then number = us end
    local text = format('%d', number)
    local set = pcall('SET', KEYS[i], ARGV[at + 1] .. text, 'NX', 'PX', ARGV[at + 3])
    if not set then
      reply = 'EWRONGTYPE the record is not a string'
    elseif set.err then
      reply = 'E' .. set.err
    else
      last, last_text, reply = number, text, number
    end
  elseif queues == 0 and verb == 'l' and record and find(record, ARGV[at + 1], 1, true) == 1 then
    local gone = pcall('DEL', KEYS[i])
    reply = gone == 1 and 'D' or 'E' .. gone.err
  else
    if not claim then claim, renew, leave, yield = rules() end
    if verb == 'l' then
      reply = leave(i, at)
    elseif verb == 'r' then
      reply = renew(i, at)
    elseif late then
      reply = 'L'
    elseif verb == 'y' then
      reply = yield(i, at)
    else
      reply = claim(i, at)
    end
  end
  replies[i + 1] = reply
  at = at + (verb == 'y' and 5 or 4)
end
-- After the grants, so that a release without memory is never refused for the clock's sake. Should this fail, the
-- time in µs keeps the numbers growing.
if last_text then
  pcall('SET', KEYS[n + 1], last_text)
end
return replies
