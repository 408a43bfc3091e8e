-- queue: who waits, in which order, how long each lives, and the hand-over.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue      zset with two members for each waiter, told apart by their first letter:
--                a<node>:<claim>:<nonce>:<lease>:<hold>   score = place of arrival: 1, 2, 3 …
--                b<the same>                              score = last ms of its life, its latest heartbeat + lease
--              Places sort before times, so a walk from 0 meets the waiters in order, and a range of scores finds
--              exactly the dead. Those of a job end in `:<tick>`, and those of readers in `:1`, which nodes of before the
--              readers take for a tick of no meaning, and of semaphores in `:<permits>/<of so many>`. The queue expires with the last of them.
--                c        score = when it was left free, or else first handed on, + 600 gaps; forgotten after that
-- ARGV[3]      flags
-- returns      functions answer what is said above them

local touch, enqueue, probes, rests, hand_over
-- The caller gave its share away.
local gives
if renews then
  -- A heartbeat. Answers whether the caller waits: it revives nobody who is dead, and nobody waits for a tick that is
  -- over or was brought back.
  function touch(queue, job, entry, lease, tick)
    local dies = redis.call('ZSCORE', queue, 'b' .. entry)
    if not dies or dies + 0 < ms or job and not job:may_wait(tick) then
      -- Also when it is not there: a replica says READONLY to this write, and its "gone" would mean nothing.
      redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
      return false
    end
    -- The queue lives as long as the caller, and as it would have lived without that. First, as this needs no memory: what
    -- follows a write is not refused for want of it.
    local left = redis.call('PTTL', queue)
    redis.call('PEXPIRE', queue, left > lease + 0 and format('%d', left) or lease)
    redis.call('ZADD', queue, 'XX', format('%d', ms + lease), 'b' .. entry)
    return true
  end
end

if waits or yields then
  -- Stands at the end, unless it stands there already. The dead make room.
  function enqueue(queue, entry, lease)
    local call, place = redis.call, '1'
    local left = call('PTTL', queue)
    -- -2: there is none.
    while left ~= -2 do
      -- From the times that are past down to the places: the dead, then who came last.
      local found = call('ZREVRANGEBYSCORE', queue, format('(%d', ms), '0', 'WITHSCORES', 'LIMIT', '0', '1')
      local member = found[1]
      if not member or string.byte(member) == 97 then
        place = member and format('%d', found[2] + 1) or place
        break
      end
      call('ZREM', queue, 'a' .. string.sub(member, 2), member)
    end
    call('ZADD', queue, 'NX', place, 'a' .. entry, format('%d', ms + lease), 'b' .. entry)
    -- It lives as long as the caller, and as it would have lived without that.
    call('PEXPIRE', queue, left > lease + 0 and format('%d', left) or lease)
  end
end

if frees then
  probes = find(ARGV[3], 'p', 1, true)

  -- Whether a lock is left free now, instead of going to who waits: for one gap, after it was handed on for eight.
  function rests(i, queue)
    local known = redis.call('ZSCORE', queue, 'c')
    local free = known and known - 600 * gap
    -- One that is too far ahead is of before a step of the clock.
    if free and (known + 0 < ms or free > ms + gap) then free = false end
    if free and ms < free then return true end
    if not (records[i] or gives) or free and ms - free < 8 * gap then return false end
    local ttl, lasts = redis.call('PTTL', queue), 601 * gap
    local set = redis.pcall('ZADD', queue, format('%d', ms + (free and lasts or lasts - gap)), 'c')
    -- Without memory it is handed on.
    if type(set) == 'table' then return false end
    redis.call('PEXPIRE', queue, format('%d', ttl > lasts and ttl or lasts))
    return free
  end

  -- Nobody else was found to go to. When nobody has it or goes on with it, it is free: everybody had a chance.
  local function nobody(i, queue, goes_on)
    if gap and not goes_on and (records[i] or not look(i)) then redis.call('ZREM', queue, 'c') end
    return false
  end

  -- Gives a key that is free, or that its owner gives away, to the first live waiter, or to all who read up to the first who
  -- does not: the caller learns of it by the answer, everybody else by a push. Who is dead, or waits for no tick, and
  -- stands before goes out. Answers whether somebody got it alone, the caller's number, whether it is left free instead,
  -- and whether somebody waits who cannot have it.
  function hand_over(i, queue, job, caller, goes_on)
    local call, from, to, own, found = redis.call, '0', '0', nil, head
    head = nil
    while true do
      found = found or call('ZRANGE', queue, from, to)
      -- There is no queue.
      if from == '0' and not found[1] then return false, own end
      local out = 0
      for j = 1, #found do
        if string.byte(found[j]) ~= 97 then return nobody(i, queue, goes_on), own end
        local entry = string.sub(found[j], 2)
        local holder, node, claim, nonce, lease, hold, tick = string.match(entry, '^((%x+):(%d+):(%x+):)(%d+):(%d+):?([%d/]*)$')
        if holder then
          local channel = 'tenure1:n:' .. node
          local dies = (call('ZSCORE', queue, 'b' .. entry) or 0) + 0
          local over = dies < ms or job and not job:may_wait(tick + 0)
          local is_next = not over and holder == caller
          if not over and not is_next then
            -- Fresh for a third of its lease after it was heard of.
            is_next = ms + math.floor(lease / 3) <= dies
            if is_next and probes then
              local heard = redis.pcall('PUBSUB', 'NUMSUB', channel)
              is_next = heard.err or heard[2] > 0
            end
          end
          -- MGET said nil also if it is no string.
          local shares = (over or is_next) and not records[i] and look(i)
          if is_next then
            if shares and not fits(i, tick) then return false, own, nil, true end
            if gap and not shares and rests(i, queue) then return false, nil, true end
          end
          if over or is_next then
            -- Out first: a removal needs no memory, and what follows a write is not refused for want of it.
            call('ZREM', queue, found[j], 'b' .. entry)
            out = out + 1
          end
          if is_next then
            local number, text = grant(i, job, holder, hold, job and tick + 0 or tick)
            if holder == caller then
              own = number
            else
              local attempt = job and job.attempt .. ' ' or ''
              -- Its count decides nothing, and a user who may not publish still hands over.
              local push = '1 ' .. kind .. ' ' .. claim .. ' ' .. nonce .. ' ' .. text .. ' ' .. lease .. ' ' .. attempt
              redis.pcall('PUBLISH', channel, push .. KEYS[i])
            end
            if not shared[i] then return true, own end
          end
        end
      end
      if #found <= to - from then return nobody(i, queue, goes_on), own end
      from = to + 1 - out
      to, found = from + 31, nil
    end
  end
end
