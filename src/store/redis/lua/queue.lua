-- queue: who waits, in which order, how long each lives, and the hand-over.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue      zset with two members for each waiter, told apart by their first letter:
--                a<node>:<claim>:<nonce>:<lease>:<hold>   score = place of arrival: 1, 2, 3 …
--                b<the same>                              score = last ms of its life, its latest heartbeat + lease
--              Places sort before times, so a walk from 0 meets the waiters in order, and a range of scores finds
--              exactly the dead. Those of a job end in `:<tick>`. The queue expires with the last of them.
-- ARGV[3]      flags
-- returns      functions answer what is said above them

local touch, enqueue, probes, hand_over
if renews then
  -- A heartbeat. Answers whether the caller waits: it revives nobody who is dead, and nobody waits for a tick that is
  -- over.
  function touch(queue, job, entry, lease, tick)
    local dies = redis.call('ZSCORE', queue, 'b' .. entry)
    if not dies or dies + 0 < ms or job and not job:is_open(tick) then
      -- Also when it is not there: a replica says READONLY to this write, and its "gone" would mean nothing.
      redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
      return false
    end
    -- The queue lives as long as the caller, and as it would have lived without that. First, as this needs no memory: what
    -- follows a write is not refused for want of it.
    local left = redis.call('PTTL', queue)
    redis.call('PEXPIRE', queue, left > lease + 0 and string.format('%d', left) or lease)
    redis.call('ZADD', queue, 'XX', string.format('%d', ms + lease), 'b' .. entry)
    return true
  end
end

if waits or yields then
  -- Stands at the end, unless it stands there already. The dead make room.
  function enqueue(queue, entry, lease)
    local left, place = redis.call('PTTL', queue), '1'
    -- -2: there is none.
    while left ~= -2 do
      -- From the times that are past down to the places: the dead, then who came last.
      local found = redis.call('ZREVRANGEBYSCORE', queue, string.format('(%d', ms), '0', 'WITHSCORES', 'LIMIT', '0', '1')
      local member = found[1]
      if not member or string.byte(member) == 97 then
        place = member and string.format('%d', found[2] + 1) or place
        break
      end
      redis.call('ZREM', queue, 'a' .. string.sub(member, 2), member)
    end
    redis.call('ZADD', queue, 'NX', place, 'a' .. entry, string.format('%d', ms + lease), 'b' .. entry)
    -- It lives as long as the caller, and as it would have lived without that.
    redis.call('PEXPIRE', queue, left > lease + 0 and string.format('%d', left) or lease)
  end
end

if frees then
  probes = find(ARGV[3], 'p', 1, true)

  -- Gives a key that is free, or that its owner gives away, to the first live waiter: the caller learns of it by the
  -- answer, everybody else by a push. Who is dead, or waits for a tick that is over, and stands before goes out. Answers
  -- whether somebody got it, and its number when it was the caller.
  function hand_over(i, queue, job, caller)
    local from, to, is_known, found = '0', '0', records[i], head
    head = nil
    while true do
      found = found or redis.call('ZRANGE', queue, from, to)
      local out = 0
      for j = 1, #found do
        if string.byte(found[j]) ~= 97 then return false end
        local entry = string.sub(found[j], 2)
        local holder, node, claim, nonce, lease, hold, tick = string.match(entry, '^((%x+):(%d+):(%x+):)(%d+):(%d+):?(%d*)$')
        if holder then
          local channel = 'tenure1:n:' .. node
          local dies = (redis.call('ZSCORE', queue, 'b' .. entry) or 0) + 0
          local over = dies < ms or job and not job:is_open(tick + 0)
          local is_next = not over and entry == caller
          if not over and not is_next then
            -- Fresh for a third of its lease after it was heard of.
            is_next = ms + math.floor(lease / 3) <= dies
            if is_next and probes then
              local heard = redis.pcall('PUBSUB', 'NUMSUB', channel)
              is_next = heard.err or heard[2] > 0
            end
          end
          if over or is_next then
            -- MGET said nil also if it is no string.
            if not is_known then redis.call('GET', KEYS[i]) end
            -- Out first: a removal needs no memory, and what follows a write is not refused for want of it.
            redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
            out = out + 1
          end
          if is_next then
            local number, text = grant(i, job, holder, hold, job and tick + 0)
            if entry == caller then return true, number end
            local kind, attempt = '1 lock ', ' '
            if job then kind, attempt = '1 job ', ' ' .. job.attempt .. ' ' end
            -- Its count decides nothing, and a user who may not publish still hands over.
            redis.pcall('PUBLISH', channel, kind .. claim .. ' ' .. nonce .. ' ' .. text .. ' ' .. lease .. attempt .. KEYS[i])
            return true
          end
        end
      end
      if #found <= to - from then return false end
      from = to + 1 - out
      to, found = from + 31, nil
    end
  end
end
