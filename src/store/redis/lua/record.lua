-- record: who owns a key, until when, and how a holder becomes its owner. From here on a command that fails raises its
-- error, which becomes the reply to the request. A function is made only when some request may call it, and uses few
-- locals of the script: to make one, and each local ready for it, is a good part of what a call costs.
-- KEYS[i]       the record
-- ARGV[3]       flags
-- returns       functions answer what is said above them
-- Which keys of those that go together are free, where not all are; see all.lua.
local apart

-- For how long a lock that was handed on and on is left free.
local gap = tonumber(string.match(ARGV[3], '%d+'))

-- Of jobs: what is known of one; see job.lua. Of elections: who leads, and what follows when that changes; see elect.lua.
local recall, leads, elected

local left, grant
if claims or renews or yields then
  -- A letter, and the milliseconds after which the present owner's record ends, if it ends. Q becomes P when the owner is
  -- no claim of ours, or may leave it free: it does not tell of its release. Behind a colon the node
  -- that owns it alone, if it is asked for.
  function left(i, letter)
    local ttl, node = redis.call('PTTL', KEYS[i]), letter == 'Q' and string.match(records[i] or '', '^(%x+):%d+:%x+:%d+$') or ''
    if letter == 'Q' and (gap or not shared[i] and #node ~= 32) then letter = 'P' end
    return letter .. (ttl < 0 and '' or format('%d', ttl)) .. ':' .. node
  end
end

if frees then
  -- Makes a holder the owner of a key that is free, or that its owner gives away, or one more of those who share it. Answers
  -- the number, and its text; nothing when others have it, unless it is sure that there is room.
  function grant(i, job, holder, hold, tick, sure)
    if job then job:count(holder, tick) end
    local number = last + 1
    if number < us then number = us end
    local text = format('%d', number)
    local key, record = KEYS[i], holder .. text
    if not job and tick ~= '0' and tick ~= '' then
      if not records[i] and look(i) and not (sure or fits(i, tick)) then return end
      join(i, holder, hold, text, tick)
    elseif records[i] then
      redis.call('SET', key, record, 'PX', hold)
    elseif not redis.call('SET', key, record, 'NX', 'PX', hold) and (look(i) or not redis.call('SET', key, record, 'NX', 'PX', hold)) then
      return
    end
    last, last_text = number, text
    if not shared[i] then records[i] = record end
    return number, text
  end
end
