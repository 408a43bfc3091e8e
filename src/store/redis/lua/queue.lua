-- queue: who waits, in which order, how long each lives, and the hand-over.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue      zset with two members for each waiter, told apart by their first letter:
--                a<node>:<claim>:<nonce>:<lease>:<hold>   score = place of arrival: 1, 2, 3 …
--                b<the same>                              score = last ms of its life, its latest heartbeat + lease
--              Places sort before times, so a walk from 0 meets the waiters in order, and a range of scores
--              finds exactly the dead.
-- returns      helpers answer an error text, or nil when all went well
local EARLIEST = '10000000000'
-- What a job sets differently: how its members end, and what is told to whom a key is handed.
local tail, told = '', '1 lock %s %s %s %s '

local function waiting(i)
  if queues == 0 then return false end
  if n == 1 or not queues then return true end
  return pcall('EXISTS', KEYS[n + 1 + i]) ~= 0
end

-- MGET said nil: free, or not a string.
local function typed(i)
  local value = pcall('GET', KEYS[i])
  return value and value.err
end

-- The dead go out.
local function prune(i)
  local queue = KEYS[n + 1 + i]
  local dead = pcall('ZRANGEBYSCORE', queue, EARLIEST, format('(%d', ms))
  if dead.err then return dead.err end
  for from = 1, #dead, 500 do
    local out = {}
    for j = from, math.min(from + 499, #dead) do
      out[#out + 1] = dead[j]
      out[#out + 1] = 'a' .. sub(dead[j], 2)
    end
    local gone = pcall('ZREM', queue, unpack(out))
    if type(gone) == 'table' then return gone.err end
  end
end

-- The queue must not outlive the last of its waiters.
local function bound(queue)
  local top = pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')
  if top[2] then pcall('PEXPIREAT', queue, top[2]) end
end

-- Counts a waiter as alive. Answers whether it waits, and an error.
local function touch(i, entry, lease)
  local queue = KEYS[n + 1 + i]
  local b = 'b' .. entry
  local changed = pcall('ZADD', queue, 'XX', 'CH', ms + lease, b)
  if type(changed) == 'table' then
    if not find(changed.err, 'OOM', 1, true) then return false, changed.err end
    -- Only the first write of a script is refused for want of memory, and this makes one that needs none.
    bound(queue)
    changed = pcall('ZADD', queue, 'XX', 'CH', ms + lease, b)
    if type(changed) == 'table' then return false, changed.err end
  end
  if changed == 0 and not pcall('ZSCORE', queue, b) then return false end
  bound(queue)
  return true
end

-- Stands at the end, unless it stands there already.
local function enqueue(i, entry, lease)
  local err = prune(i)
  if err then return err end
  local queue = KEYS[n + 1 + i]
  local latest = pcall('ZREVRANGEBYSCORE', queue, EARLIEST, 0, 'WITHSCORES', 'LIMIT', 0, 1)
  local place = latest[2] and latest[2] + 1 or 1
  local added = pcall('ZADD', queue, 'NX', place, 'a' .. entry, ms + lease, 'b' .. entry)
  if type(added) == 'table' then return added.err end
  bound(queue)
end

-- Makes a holder the owner of a free key. Answers the number, or nil and an error.
local function grant(i, holder, hold)
  local number = last + 1
  if number < us then number = us end
  local text = format('%d', number)
  local value = holder .. text
  local set = pcall('SET', KEYS[i], value, 'NX', 'PX', hold)
  if not set then return nil, 'WRONGTYPE the record is not a string' end
  if set.err then return nil, set.err end
  last, last_text = number, text
  records[i] = value
  return number
end

-- Gives a free key to the first live waiter: the caller learns of it by the answer, everybody else by a push.
-- Answers whether it did, and an error.
local function hand_over(i, caller)
  local queue = KEYS[n + 1 + i]
  local from, to = 0, 0
  while true do
    local found = pcall('ZRANGE', queue, from, to)
    if found.err then return false, found.err end
    for _, member in ipairs(found) do
      if byte(member) ~= 97 then return false end
      local entry = sub(member, 2)
      local node, claim, nonce, lease, hold, tick = match(entry, '^(%x+):(%d+):(%x+):(%d+):(%d+):?(%d*)$')
      local chosen = entry == caller
      if node and not chosen then
        local dies = tonumber(pcall('ZSCORE', queue, 'b' .. entry) or 0)
        chosen = dies and ms + (lease - lease % 3) / 3 <= dies
        if chosen and probes then
          local heard = pcall('PUBSUB', 'NUMSUB', 'tenure1:n:' .. node)
          chosen = heard.err or heard[2] > 0
        end
      end
      if node and chosen then
        -- Out first: a removal needs no memory, and what follows a write is not refused for want of it.
        local out = pcall('ZREM', queue, member, 'b' .. entry)
        if type(out) == 'table' then return false, out.err end
        local _, err = grant(i, format('%s:%s:%s:', node, claim, nonce), hold, tick)
        if err then return false, err end
        if entry ~= caller then
          -- Its count decides nothing, and a user who may not publish still hands over.
          pcall('PUBLISH', 'tenure1:n:' .. node, format(told, claim, nonce, last_text, lease) .. KEYS[i])
        end
        return true
      end
    end
    if #found <= to - from then return false end
    from, to = to + 1, to + 32
  end
end

-- A free key with a queue: the dead out, then to the first live waiter.
local function settle(i, caller)
  local err = typed(i) or prune(i)
  if err then return err end
  local _, failed = hand_over(i, caller)
  return failed
end

-- Extends to the full lease, never to less than there was.
local function extend(i, hold)
  local left = pcall('PTTL', KEYS[i])
  if type(left) == 'table' then return left.err end
  if left < hold + 0 then
    local done = pcall('PEXPIRE', KEYS[i], hold)
    if type(done) == 'table' then return done.err end
  end
end

-- The grant number in a record that this holder owns, else nil.
local function owned(i, holder)
  local value = records[i]
  local number = value and find(value, holder, 1, true) == 1 and tonumber(sub(value, #holder + 1))
  return number and number > 0 and number or nil
end

-- A letter and the milliseconds after which the present owner's record ends, if it ends.
local function left(i, letter)
  local ttl = pcall('PTTL', KEYS[i])
  if type(ttl) == 'table' then return 'E' .. ttl.err end
  return ttl < 0 and letter or letter .. format('%d', ttl)
end
