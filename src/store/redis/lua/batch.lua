-- batch: every request in turn, each answered on its own; the two cases that are nearly all of the load, a free
-- key that is claimed and an owned one that is left with nobody waiting, in as few calls as can be.
-- KEYS[i]       the record
-- KEYS[n+1]     the clock
-- ARGV[4]       the verbs, a letter each: c, w (claim), r (renew), l (leave), y (yield); in capitals when the
--               request has terms of its own
-- ARGV[5]       lease in ms of all others
-- ARGV[6]       hold in ms of all others
-- ARGV[6+i]     holder
-- ARGV[more+1]  in the order of the requests: lease of one with terms of its own
-- ARGV[more+2]  hold of the same
-- ARGV[more]    `to` of a yield, behind these
-- returns       {server time in µs, one reply per request}
local verbs, common_lease, common_hold = ARGV[4], ARGV[5], ARGV[6]
local replies, more = { us }, 6 + n
local left_keys, leaves = {}, 0
local claim, renew, leave, yield
for i = 1, n do
  local verb, record, holder, lease, hold = byte(verbs, i), records[i], ARGV[6 + i], common_lease, common_hold
  if verb < 97 then
    verb, lease, hold, more = verb + 32, ARGV[more + 1], ARGV[more + 2], more + 2
  end
  local reply
  -- 99 is c, 108 l, 114 r, 119 w, 121 y.
  if queues == 0 and verb == 108 and record and find(record, holder, 1, true) == 1 then
    leaves = leaves + 1
    left_keys[leaves] = KEYS[i]
    reply = 'D'
  elseif queues == 0 and not record and not late and (verb == 119 or verb == 99) then
    local number = last + 1
    if number < us then number = us end
    local text = format('%d', number)
    local set = pcall('SET', KEYS[i], holder .. text, 'NX', 'PX', hold)
    if not set then
      reply = 'EWRONGTYPE the record is not a string'
    elseif set.err then
      reply = 'E' .. set.err
    else
      last, last_text, reply = number, text, number
    end
  else
    if not claim then claim, renew, leave, yield = rules() end
    local to
    if verb == 121 then
      more = more + 1
      to = ARGV[more]
    end
    if verb == 108 then
      reply = leave(i, holder, lease, hold)
    elseif verb == 114 then
      reply = renew(i, holder, lease, hold)
    elseif late then
      reply = 'L'
    elseif to then
      reply = yield(i, holder, lease, hold, to)
    else
      reply = claim(i, verb == 119, holder, lease, hold)
    end
  end
  replies[i + 1] = reply
end
-- A batch names a key once, so that nobody misses a deletion until now.
if leaves > 0 then
  local gone = pcall('DEL', unpack(left_keys))
  if gone ~= leaves then
    local at = 1
    for i = 1, n do
      if KEYS[i] == left_keys[at] then
        replies[i + 1], at = 'E' .. gone.err, at + 1
      end
    end
  end
end
-- After the grants, so that a release without memory is never refused for the clock's sake. Should this fail, the
-- time in µs keeps the numbers growing.
if last_text then
  pcall('SET', KEYS[n + 1], last_text)
end
return replies
