-- queue: who waits, in which order, how long each lives, and the hand-over.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue      zset with two members for each waiter, told apart by their first letter:
--                a<node>:<claim>:<nonce>:<lease>:<hold>   score = place of arrival: 1, 2, 3 …
--                b<the same>                              score = last ms of its life, its latest heartbeat + lease
--              Places sort before times, so a walk from 0 meets the waiters in order, and a range of scores finds
--              exactly the dead. Those of a job end in `:<tick>`. The queue expires with the last of them.
-- returns      functions answer what is said above them

-- Out of the queue. Answers whether it was there.
function t.withdraw(i, entry)
  return redis.call('ZREM', KEYS[t.n + 1 + i], 'a' .. entry, 'b' .. entry) > 0
end

-- The queue lives as long as who was heard of just now, and as it would have lived without that: `left` ms.
function t.bound(queue, lease, left)
  redis.call('PEXPIRE', queue, left > lease + 0 and string.format('%d', left) or lease)
end

if t.r then
  -- A heartbeat. Answers whether the caller waits: it revives nobody who is dead, and nobody waits for a tick that is
  -- over.
  function t.touch(i, job, entry, lease, tick)
    local queue = KEYS[t.n + 1 + i]
    local dies = redis.call('ZSCORE', queue, 'b' .. entry)
    if not dies or dies + 0 < t.ms or job and not t.is_open(job, tick) then
      -- Also when it is not there: a replica says READONLY to this write, and its "gone" would mean nothing.
      t.withdraw(i, entry)
      return false
    end
    -- First, as it needs no memory: what follows a write is not refused for want of it.
    t.bound(queue, lease, redis.call('PTTL', queue))
    redis.call('ZADD', queue, 'XX', string.format('%d', t.ms + lease), 'b' .. entry)
    return true
  end
end

if t.w or t.y then
  -- Stands at the end, unless it stands there already. The dead make room.
  function t.enqueue(i, entry, lease)
    local queue, place = KEYS[t.n + 1 + i], '1'
    local left = redis.call('PTTL', queue)
    -- -2: there is none.
    while left ~= -2 do
      -- From the times that are past down to the places: the dead, then who came last.
      local found = redis.call('ZREVRANGEBYSCORE', queue, string.format('(%d', t.ms), '0', 'WITHSCORES', 'LIMIT', '0', '1')
      local member = found[1]
      if not member or string.byte(member) == 97 then
        place = member and string.format('%d', found[2] + 1) or place
        break
      end
      t.withdraw(i, string.sub(member, 2))
    end
    redis.call('ZADD', queue, 'NX', place, 'a' .. entry, string.format('%d', t.ms + lease), 'b' .. entry)
    t.bound(queue, lease, left)
  end
end

if t.frees then
  -- What becomes of a waiter that is met on the way to the first live one: 'out' when it is dead or waits for a tick that
  -- is over, 'next' when it is the one, and nil when it keeps its place.
  function t.fate(i, job, entry, caller, channel, lease, tick)
    local dies = (redis.call('ZSCORE', KEYS[t.n + 1 + i], 'b' .. entry) or 0) + 0
    if dies < t.ms or job and not t.is_open(job, tick + 0) then return 'out' end
    if entry == caller then return 'next' end
    local is_fresh = t.ms + (lease - lease % 3) / 3 <= dies
    if is_fresh and t.probes then
      local heard = redis.pcall('PUBSUB', 'NUMSUB', channel)
      return (heard.err or heard[2] > 0) and 'next' or nil
    end
    return is_fresh and 'next' or nil
  end

  -- Gives a key that is free, or that its owner gives away, to the first live waiter: the caller learns of it by the
  -- answer, everybody else by a push. The dead that it walks over go out. Answers whether somebody got it.
  function t.hand_over(i, job, caller)
    local queue, from, to, record = KEYS[t.n + 1 + i], '0', '0', t.records[i]
    while true do
      local found, out = redis.call('ZRANGE', queue, from, to), 0
      for j = 1, #found do
        if string.byte(found[j]) ~= 97 then return false end
        local entry = string.sub(found[j], 2)
        local node, claim, nonce, lease, hold, tick = string.match(entry, '^(%x+):(%d+):(%x+):(%d+):(%d+):?(%d*)$')
        local channel = node and 'tenure1:n:' .. node
        local fate = node and t.fate(i, job, entry, caller, channel, lease, tick)
        if fate then
          -- MGET said nil also if it is no string.
          if not record then redis.call('GET', KEYS[i]) end
          -- Out first: a removal needs no memory, and what follows a write is not refused for want of it.
          t.withdraw(i, entry)
          out = out + 1
        end
        if fate == 'next' then
          t.grant(i, job, node .. ':' .. claim .. ':' .. nonce .. ':', hold, job and tick + 0)
          if entry ~= caller then
            local push = ' ' .. claim .. ' ' .. nonce .. ' ' .. t.last_text .. ' ' .. lease .. ' '
            push = job and '1 job' .. push .. job.attempt .. ' ' or '1 lock' .. push
            -- Its count decides nothing, and a user who may not publish still hands over.
            redis.pcall('PUBLISH', channel, push .. KEYS[i])
          end
          return true
        end
      end
      if #found <= to - from then return false end
      from = to + 1 - out
      to = from + 31
    end
  end

  -- A free key goes to the first live waiter, whoever asks.
  function t.settle(i, job, caller)
    if t.queues ~= 0 then t.hand_over(i, job, caller) end
  end
end
