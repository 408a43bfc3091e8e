-- batch: every request from the first that is not plain, in turn, each answered on its own.
-- KEYS[i]           the record
-- KEYS[n+1+i]       the queue
-- KEYS[n+1]         the clock
-- ARGV[at+1..at+6]  all words of a request
-- returns           {server time in µs, one reply per request}: what its verb answers, W<number>:<attempt> for the
--                   number of a tick, L = late, A = apart, see all.lua, E<error>
local acts = { c = claim, w = claim, r = renew, l = leave, f = finish, y = yield, p = pass, e = extend }
for i = first, n do
  local verb, holder, lease, hold, tick, to = unpack(ARGV, at + 1, at + 6)
  local act, entry = acts[verb] or ask, holder .. lease .. ':' .. hold
  local job, record, reply = nil, records[i], nil
  local led = leads and leads(i)
  if recall then
    job, entry, tick = recall(i), entry .. ':' .. tick, tick + 0
  elseif tick ~= '0' then
    entry = entry .. ':' .. tick
  end
  gives = false
  -- MGET said nil also if it is no string. A claim to write finds out when it takes it.
  local wrong = job
  if not record and (tick ~= '0' or act ~= claim) then
    local well, why = pcall(look, i)
    if not well then wrong = { err = type(why) == 'table' and why.err or why } end
  end
  if late and (act == claim or act == yield or verb == 'p') then
    reply = 'L'
  elseif apart and apart[i] then
    reply = 'A'
  elseif wrong and wrong.err then
    reply = 'E' .. wrong.err
  else
    local well
    -- The grant number in a record that this holder owns.
    local number = record and find(record, holder, 1, true) == 1 and tonumber(string.sub(record, #holder + 1))
    number = number and number > 0 and number < 9007199254740992 and number
    if shared[i] then number = tonumber(redis.call('ZSCORE', KEYS[i], 'n' .. holder) or nil) end
    well, reply = pcall(act, i, KEYS[n + 1 + i], number, job, holder, entry, lease, hold, tick, to, verb)
    -- What is done is done; whoever is not told looks for itself.
    if leads then pcall(elected, i, led, number, hold) end
    if not well then
      reply = 'E' .. (type(reply) == 'table' and reply.err or reply)
    elseif job and type(reply) == 'number' and reply > 0 then
      reply = format('W%d:%d', reply, job.attempt)
    end
  end
  replies[i + 1], at = reply, at + words
end
-- As in plain.lua: after the grants, and no loss should it fail.
if last_text then attempt('SET', KEYS[n + 1], last_text) end
return replies
