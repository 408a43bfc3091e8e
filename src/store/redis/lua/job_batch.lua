-- job_batch: every request in turn, each answered on its own.
-- KEYS[n+1]    the clock
-- ARGV[at]     mark: the tick, in ms since 1970; from then on at is one further, and all is as for locks:
-- ARGV[at]     verb: c, w (claim), r (renew), l (leave), f (finish), y (yield)
-- returns      {server time in µs, one reply per request}
local replies, at = { us }, 4
for i = 1, n do
  mark, tail = tonumber(ARGV[at]), ':' .. ARGV[at]
  at = at + 1
  local verb, reply = ARGV[at], nil
  if late and (verb == 'c' or verb == 'w' or verb == 'y') then
    reply = 'L'
  else
    local err = not records[i] and typed(i) or recall(i)
    if err then
      reply = 'E' .. err
    elseif verb == 'r' then
      reply = renew(i, at)
      if reply == 'X' and not open(mark) then reply = 'O' end
    elseif verb == 'l' then
      reply = leave(i, at)
    elseif verb == 'f' then
      reply = finish(i, at)
    elseif verb == 'y' then
      reply = yield(i, at)
    else
      reply = claim(i, at)
    end
  end
  if type(reply) == 'number' then reply = format('W%d:%d', reply, memory.attempt) end
  replies[i + 1] = reply
  at = at + (verb == 'y' and 5 or 4)
end
-- As in batch.lua: after the grants, and no loss should it fail.
if last_text then
  pcall('SET', KEYS[n + 1], last_text)
end
return replies
