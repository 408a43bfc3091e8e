-- batch: every request from the first that is not plain, in turn, each answered on its own.
-- KEYS[n+1]     the clock
-- ARGV[6+i]     holder
-- ARGV[more+1]  in the order of the requests: lease of one with terms of its own
-- ARGV[more+2]  hold of the same
-- ARGV[more]    `to` of a yield, behind these
-- returns       {server time in µs, one reply per request}
for i = first, n do
  local verb, holder, lease, hold, to, reply = byte(verbs, i), ARGV[6 + i], common_lease, common_hold, nil, nil
  if verb < 97 then
    verb, lease, hold, more = verb + 32, ARGV[more + 1], ARGV[more + 2], more + 2
  end
  -- 108 is l, 114 r, 119 w, 121 y.
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
  replies[i + 1] = reply
end
-- As in plain.lua: after the grants, and no loss should it fail.
if last_text then
  pcall('SET', KEYS[n + 1], last_text)
end
return replies
