-- plain: the two cases that are nearly all of the load, a free key that is claimed and an owned one that is left with
-- nobody waiting, in as few calls as can be; up to the first request that is neither. It makes no closure, and the
-- rules that follow are closures: making them costs as much as two calls.
-- KEYS[i]       the record
-- KEYS[n+1]     the clock
-- ARGV[4]       the verbs, a letter each: c, w (claim), r (renew), l (leave), y (yield); in capitals when the
--               request has terms of its own
-- ARGV[5]       lease in ms of all others
-- ARGV[6]       hold in ms of all others
-- ARGV[6+i]     holder
-- ARGV[more+2]  hold of one with terms of its own; batch.lua has all that stands there
-- returns       {server time in µs, one reply per request} when all were plain
local verbs, common_lease, common_hold = ARGV[4], ARGV[5], ARGV[6]
local replies, first, more = { us }, 1, 6 + n
if queues == 0 then
  local leaving, leaves = {}, 0
  for i = 1, n do
    local verb, record, holder, hold, own = byte(verbs, i), records[i], ARGV[6 + i], common_hold, 0
    if verb < 97 then verb, hold, own = verb + 32, ARGV[more + 2], 2 end
    local reply
    -- 99 is c, 108 l, 119 w.
    if verb == 108 and record and find(record, holder, 1, true) == 1 then
      leaves = leaves + 1
      leaving[leaves] = KEYS[i]
      reply = 0
    elseif not record and not late and (verb == 119 or verb == 99) then
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
      break
    end
    replies[i + 1], first, more = reply, i + 1, more + own
  end
  -- A batch names a key once, so nobody misses a deletion until now.
  if leaves > 0 then
    local gone = pcall('DEL', unpack(leaving))
    if type(gone) == 'table' then
      local at = 1
      for i = 1, first - 1 do
        if KEYS[i] == leaving[at] then
          replies[i + 1], at = 'E' .. gone.err, at + 1
        end
      end
    end
  end
  if first > n then
    -- After the grants, so that a release without memory is never refused for the clock's sake. Should this fail, the
    -- time in µs keeps the numbers growing.
    if last_text then pcall('SET', KEYS[n + 1], last_text) end
    return replies
  end
end
