-- queue: keeps the waiters of a key in order of arrival, notes their heartbeats, and hands the key over.
-- KEYS[i]      record
-- KEYS[n+2+i]  queue      zset, expires with its last waiter; it has two members for each waiter:
--                a<node>:<claim>:<nonce>:<lease>:<hold>   score = place: 1, 2, 3 …
--                b<node>:<claim>:<nonce>:<lease>:<hold>   score = last ms of its life: latest heartbeat + lease
--              Members of a job end in `:<tick>`, of a reader in `:1`, of a semaphore in `:<permits>/<capacity>`. Nodes
--              of versions before readers take the `:1` for a tick without meaning.
--              Places are smaller than times. So a range from 0 lists waiters in order, and a range of past times
--              lists the dead. One more member:
--                c   score = 600 poll gaps + the end of the gap in which the key is left free, or else the time when it
--                    was first handed on; a score in the past is ignored
-- ARGV[3]      flags
-- returns      nothing: the comment above each function says what it returns

local touch, enqueue, probes, is_left_free, hand_over
-- Whether the caller gave its share away in this request, and whether an operator revoked its lease.
local gave_share, is_revoked
if renews then
  -- Notes a heartbeat and returns whether the claim waits. A dead waiter stays dead. A claim cannot wait for a tick that
  -- is over or that was brought back.
  function touch(queue, job, entry, lease, tick)
    local dies = redis.call('ZSCORE', queue, 'b' .. entry)
    if not dies or dies + 0 < ms or job and not job:may_wait(tick) then
      -- Sent also without an entry: a replica answers READONLY to this write, so that its "gone" is not believed.
      redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
      return false
    end
    -- The queue lives for at least this waiter's lease. PEXPIRE comes first because it needs no memory: the server does
    -- not refuse a later write of the same script for want of memory.
    local left = redis.call('PTTL', queue)
    redis.call('PEXPIRE', queue, left > lease + 0 and format('%d', left) or lease)
    redis.call('ZADD', queue, 'XX', format('%d', ms + lease), 'b' .. entry)
    return true
  end
end

if waits or yields then
  -- Appends a waiter to the queue, unless it is there already. Removes dead waiters on the way.
  function enqueue(queue, entry, lease)
    local call, place = redis.call, '1'
    local left = call('PTTL', queue)
    -- -2 means that there is no queue.
    while left ~= -2 do
      -- The range runs from past times down to places: first dead waiters, then the waiter that came last.
      local found = call('ZREVRANGEBYSCORE', queue, format('(%d', ms), '0', 'WITHSCORES', 'LIMIT', '0', '1')
      local member = found[1]
      if not member or string.byte(member) == 97 then
        place = member and format('%d', found[2] + 1) or place
        break
      end
      call('ZREM', queue, 'a' .. string.sub(member, 2), member)
    end
    call('ZADD', queue, 'NX', place, 'a' .. entry, format('%d', ms + lease), 'b' .. entry)
    -- The queue lives for at least this waiter's lease.
    call('PEXPIRE', queue, left > lease + 0 and format('%d', left) or lease)
  end
end

if frees then
  probes = find(ARGV[3], 'p', 1, true)

  -- Returns whether the lock is left free now for one poll gap. This happens after the lock was handed on for eight gaps.
  function is_left_free(i, queue)
    local known = redis.call('ZSCORE', queue, 'c')
    local free = known and known - 600 * gap
    -- A time too far ahead was written before the server's clock was set back.
    if free and (known + 0 < ms or free > ms + gap) then free = false end
    if free and ms < free then return true end
    if not (records[i] or gave_share) or free and ms - free < 8 * gap then return false end
    local ttl, lasts = redis.call('PTTL', queue), 601 * gap
    local set = redis.pcall('ZADD', queue, format('%d', ms + (free and lasts or lasts - gap)), 'c')
    -- Without memory the lock is handed on.
    if type(set) == 'table' then return false end
    redis.call('PEXPIRE', queue, format('%d', ttl > lasts and ttl or lasts))
    return free
  end

  -- Ends a hand-over that found no waiter. If the key is free then, polling clients can get it. So the poll gap is forgotten.
  local function no_waiter(i, queue, goes_on)
    if gap and not goes_on and (records[i] or not look(i)) then redis.call('ZREM', queue, 'c') end
    return false
  end

  -- Grants a key that is free, or whose owner gave it away, to the first live waiter, or to every reader before the
  -- first waiter that does not read. Other nodes learn of their grant by a push, the caller by the reply. Removes
  -- waiters that are dead, or whose tick is over, if they come before. Passes over a triggered tick while a tick of the
  -- schedule has not ended. Finds no waiter while the server recovers. Returns
  -- four values: whether one waiter owns the key alone, the caller's number, whether the key is left free for a poll gap,
  -- and whether the first waiter cannot be granted.
  function hand_over(i, queue, job, caller, goes_on)
    if recovering then return no_waiter(i, queue, goes_on) end
    local call, from, to, own, found = redis.call, '0', '0', nil, head
    head = nil
    while true do
      found = found or call('ZRANGE', queue, from, to)
      -- There is no queue.
      if from == '0' and not found[1] then return false, own end
      local out = 0
      for j = 1, #found do
        if string.byte(found[j]) ~= 97 then return no_waiter(i, queue, goes_on), own end
        local entry = string.sub(found[j], 2)
        local holder, node, claim, nonce, lease, hold, tick = string.match(entry, '^((%x+):(%d+):(%x+):)(%d+):(%d+):?([%d/]*)$')
        if holder then
          local channel = 'tenure1:n:' .. node
          local dies = (call('ZSCORE', queue, 'b' .. entry) or 0) + 0
          local over = dies < ms or job and not job:may_wait(tick + 0)
          local is_behind = job and job:is_behind(tick + 0)
          local is_next = not over and holder == caller and not is_behind
          if not over and not is_next and not is_behind then
            -- A waiter is fresh for a third of its lease after its latest heartbeat.
            is_next = ms + math.floor(lease / 3) <= dies
            if is_next and probes then
              local heard = redis.pcall('PUBSUB', 'NUMSUB', channel)
              is_next = heard.err or heard[2] > 0
            end
          end
          -- MGET also answers nil for a value that is not a string.
          local shares = (over or is_next) and not records[i] and look(i)
          if is_next then
            if shares and not fits(i, tick) then return false, own, nil, true end
            if gap and not shares and is_left_free(i, queue) then return false, nil, true end
          end
          if over or is_next then
            -- ZREM comes first because it needs no memory: the server does not refuse a later write of the script for
            -- want of memory.
            call('ZREM', queue, found[j], 'b' .. entry)
            out = out + 1
          end
          if is_next then
            local number, text = grant(i, job, holder, hold, job and tick + 0 or tick)
            if holder == caller then
              own = number
            else
              local attempt = job and job:attempt_at(tick + 0) .. ' ' or ''
              -- The number of receivers decides nothing, and a Redis user that may not publish can still hand over.
              local push = '1 ' .. kind .. ' ' .. claim .. ' ' .. nonce .. ' ' .. text .. ' ' .. lease .. ' ' .. attempt
              redis.pcall('PUBLISH', channel, push .. KEYS[i])
            end
            if not shared[i] then return true, own end
          end
        end
      end
      if #found <= to - from then return no_waiter(i, queue, goes_on), own end
      from = to + 1 - out
      to, found = from + 31, nil
    end
  end
end
