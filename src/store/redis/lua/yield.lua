-- yield: hands the owner's key to the first live waiter, and queues the owner at the end under a fresh number. Without a
-- waiter the owner keeps the key under the fresh number.
-- KEYS[i]      record
-- KEYS[n+2+i]  queue
-- returns      integer = granted to the fresh number; X = gone; ! = revoked, and nothing was done
--              Q<ms> or Q = the fresh number is queued, then :<node> of the exclusive owner
--              P<ms> or P = it is queued behind a foreign owner, or the lock is left free for a poll gap
--              R<ms> = it is queued, and the server recovers for so many ms
if yields then
  function yield(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if is_revoked then return '!' end
    if not (number or records[i]) and queues ~= 0 then
      local _, own = hand_over(i, queue, job, holder)
      number = own
    end
    if not number then
      -- A write that changes nothing: a replica answers READONLY to it, so that its "gone" is not believed.
      redis.call('ZREM', queue, 'b')
      return 'X'
    end
    if not records[i] then
      remove_share(i, holder, tick)
      gave_share = true
    end
    local given, _, rest, blocked = hand_over(i, queue, job, nil, true)
    local shares = not records[i] and look(i)
    if recovering then
      -- A lost lease may exclude the fresh number, unless the yielding claim excluded it.
      blocked = not records[i] and tick ~= '1'
    else
      -- In a poll gap the claim that yields waits too.
      rest = rest or not (given or blocked or shares) and gap and is_left_free(i, queue)
    end
    if not given then
      -- DEL comes first because it needs no memory: the server does not refuse a later write of the script for want of
      -- memory.
      if records[i] then redis.call('DEL', KEYS[i]) end
      records[i] = false
      local own = not (rest or blocked) and grant(i, job, to, hold, tick)
      if own then return own end
    end
    enqueue(queue, to .. string.sub(entry, #holder + 1), lease)
    return left(i, 'Q')
  end
end
