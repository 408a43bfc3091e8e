-- job_batch: every request in turn, each answered on its own.
-- KEYS[n+1]     the clock
-- ARGV[4]       the verbs as in plain.lua, and f (finish)
-- ARGV[5]       lease in ms of all that have no terms of their own
-- ARGV[6]       hold in ms of the same
-- ARGV[6+i]     holder
-- ARGV[more]    in the order of the requests: the mark, which is the tick in ms since 1970; `to` of a yield comes last
-- ARGV[more+1]  lease of one with terms of its own
-- ARGV[more+2]  hold of the same
-- returns       {server time in µs, one reply per request}
local replies, more = { us }, 6 + n
for i = 1, n do
  local verb, holder, lease, hold, to, reply = byte(ARGV[4], i), ARGV[6 + i], ARGV[5], ARGV[6], nil, nil
  more = more + 1
  mark, tail = tonumber(ARGV[more]), ':' .. ARGV[more]
  if verb < 97 then
    verb, lease, hold, more = verb + 32, ARGV[more + 1], ARGV[more + 2], more + 2
  end
  -- 99 is c, 102 f, 108 l, 114 r, 119 w, 121 y.
  if verb == 121 then
    more = more + 1
    to = ARGV[more]
  end
  if late and (to or verb == 99 or verb == 119) then
    reply = 'L'
  else
    local err = not records[i] and typed(i) or recall(i)
    if err then
      reply = 'E' .. err
    elseif verb == 114 then
      reply = renew(i, holder, lease, hold)
      if reply == 'X' and not open(mark) then reply = 'O' end
    elseif verb == 108 then
      reply = leave(i, holder, lease, hold)
    elseif verb == 102 then
      reply = finish(i, holder, lease, hold)
    elseif to then
      reply = yield(i, holder, lease, hold, to)
    else
      reply = claim(i, verb == 119, holder, lease, hold)
    end
  end
  if type(reply) == 'number' and reply > 0 then reply = format('W%d:%d', reply, memory.attempt) end
  replies[i + 1] = reply
end
-- As in plain.lua: after the grants, and no loss should it fail.
if last_text then
  pcall('SET', KEYS[n + 1], last_text)
end
return replies
