-- batch: executes the requests that plain.lua did not execute, in order. Each gets its own reply.
-- KEYS[i]           record
-- KEYS[n+2+i]       queue
-- KEYS[n+1]         clock
-- ARGV[at+1..at+6]  all words of a request
-- returns           {server time in µs, one reply per request}: the reply of the verb's function; W<number>:<attempt> if
--                   a tick was granted; L = late; A = another key of the group is not free, see all.lua; E<error>
local acts = { c = claim, w = claim, r = renew, l = leave, f = finish, y = yield, p = pass, a = pass, e = extend }
for i = first, n do
  local verb, holder, lease, hold, tick, to = unpack(ARGV, at + 1, at + 6)
  local act, entry = acts[verb] or ask, holder .. lease .. ':' .. hold
  local job, record, reply = nil, records[i], nil
  local led = leads and leads(i)
  if recall then
    job, entry, tick = recall(i, holder), entry .. ':' .. tick, tick + 0
  elseif tick ~= '0' then
    entry = entry .. ':' .. tick
  end
  gave_share = false
  -- MGET also answers nil for a value that is not a string. A claim for writing finds out when it sets the record, if
  -- it may.
  local wrong = job
  if not record and (recovering or tick ~= '0' or act ~= claim) then
    local well, why = pcall(look, i)
    if not well then wrong = { err = type(why) == 'table' and why.err or why } end
  end
  if late and (act == claim or act == yield or verb == 'p' or verb == 'a') then
    reply = 'L'
  elseif apart and apart[i] then
    reply = 'A'
  elseif wrong and wrong.err then
    reply = 'E' .. wrong.err
  else
    local well
    -- The grant number in the record, if this holder owns it.
    local number = record and find(record, holder, 1, true) == 1 and tonumber(string.sub(record, #holder + 1))
    number = number and number > 0 and number < 9007199254740992 and number
    if shared[i] then number = tonumber(redis.call('ZSCORE', KEYS[i], 'n' .. holder) or nil) end
    -- A revoked record has a ! before it. A revoked share has no number.
    is_revoked = not number and (act == renew or act == yield or act == leave or act == finish)
    if is_revoked and record then
      is_revoked = string.byte(record) == 33 and find(record, holder, 2, true) == 2
    elseif is_revoked then
      is_revoked = shared[i] and end_of(i, holder, tick)
    end
    well, reply = pcall(act, i, KEYS[n + 2 + i], number, job, holder, entry, lease, hold, tick, to, verb)
    -- The request was executed in any case. A watcher that gets no push asks again by itself.
    if leads then pcall(elected, i, led, number, hold) end
    if not well then
      reply = 'E' .. (type(reply) == 'table' and reply.err or reply)
    elseif job and type(reply) == 'number' and reply > 0 then
      reply = format('W%d:%d', reply, job:attempt_at(tick))
    end
  end
  replies[i + 1], at = reply, at + words
end
-- As in plain.lua: after the grants, and a failure loses nothing.
if last_text then attempt('SET', KEYS[n + 1], last_text) end
return replies
