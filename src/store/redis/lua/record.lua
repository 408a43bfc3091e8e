-- record: who owns a key, until when, and how a holder becomes its owner. From here on a command that fails raises its
-- error, which becomes the reply to the request. A function is made only when some request may call it, and uses few
-- locals of the script: to make one, and each local ready for it, is a good part of what a call costs.
-- KEYS[i]       the record
-- ARGV[word+1]  the verbs of what is to come
-- returns       functions answer what is said above them
-- Which verbs are to come, and whether some key is free, or becomes so.
local claims, waits, renews, leaves, finishes, yields, frees
for i = first, n do
  local word = at + (i - first) * words
  local verb = ARGV[word + 1]
  if verb == 'w' then
    claims, waits = true, true
  elseif verb == 'c' then
    claims = true
  elseif verb == 'r' then
    renews = true
  elseif verb == 'y' then
    yields, frees = true, true
  else
    leaves, frees, finishes = true, true, finishes or verb == 'f'
  end
  frees = frees or not records[i]
end

local left, grant
if claims or renews or yields then
  -- A letter, and the milliseconds after which the present owner's record ends, if it ends. Q becomes P when the owner is
  -- no claim of ours: it tells nobody of its release.
  function left(i, letter)
    local ttl = redis.call('PTTL', KEYS[i])
    if letter == 'Q' and string.match(records[i] or '', '^%x+():%d+:%x+:%d+$') ~= 33 then letter = 'P' end
    return ttl < 0 and letter or letter .. string.format('%d', ttl)
  end
end

if frees then
  -- Makes a holder the owner of a key that is free, or that its owner gives away. Answers the number, and its text.
  function grant(i, job, holder, hold, tick)
    if job then job:count(holder, tick) end
    local number = last + 1
    if number < us then number = us end
    local text = string.format('%d', number)
    local key, record = KEYS[i], holder .. text
    if records[i] then
      redis.call('SET', key, record, 'PX', hold)
    elseif not redis.call('SET', key, record, 'NX', 'PX', hold) then
      error({ err = 'WRONGTYPE the record is not a string' })
    end
    last, last_text, records[i] = number, text, record
    return number, text
  end
end
