-- record: reports how long a key stays owned, and makes a holder the owner. From here on a failing command raises its
-- error, and the error becomes the reply to the request. A function is created only if a request may call it, and reads
-- few local variables of the script. To create a function, and to bind each variable, is a large part of the cost of a
-- call.
-- KEYS[i]       record
-- ARGV[3]       flags
-- returns       nothing: the comment above each function says what it returns

-- For claims that go together and cannot all be granted: which of the keys are free; see all.lua.
local apart

-- The poll gap in ms: how long a lock that was handed on again and again is left free.
local gap = tonumber(string.match(ARGV[3], '%d+'))

-- Functions of jobs (job.lua) and of elections (elect.lua).
local recall, leads, elected

local left, grant
if claims or renews or yields then
  -- Returns a letter, and the ms until the owner's record expires, if it does. Q becomes P if the owner is foreign,
  -- because a foreign client sends no push when it releases, or if the lock may be left free for a poll gap. After Q a
  -- colon and the node of the exclusive owner follow. While the server recovers, the reply is R and the ms that are left.
  -- An owner that may keep its lease without a holder learns by a push that another claim wants the key.
  function left(i, letter)
    if recovering then return 'R' .. recovering end
    local node, claim, nonce, mark = string.match(records[i] or '', '^(%x+):(%d+):(%x+):(0?)%d+$')
    if mark == '0' and #node == 32 then
      redis.pcall('PUBLISH', 'tenure1:n:' .. node, '1 recalled ' .. kind .. ' ' .. claim .. ' ' .. nonce .. ' ' .. KEYS[i])
    end
    local ttl = redis.call('PTTL', KEYS[i])
    node = letter == 'Q' and node or ''
    if letter == 'Q' and (gap or records[i] and #node ~= 32) then letter = 'P' end
    return letter .. (ttl < 0 and '' or format('%d', ttl)) .. ':' .. node
  end
end

if frees then
  -- Makes a holder the owner of a key that is free or given away, or adds a share. Returns the number, and its text.
  -- Returns nothing if others own the key. `sure` means that the caller knows of room for the share. `mark` is 0 if the
  -- owner of a lock may keep its lease without a holder.
  function grant(i, job, holder, hold, tick, sure, mark)
    local number = last + 1
    if number < us then number = us end
    local text = format('%d', number)
    if job then job:count(holder, tick, text) end
    local key, record = KEYS[i], holder .. (mark or '') .. text
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
