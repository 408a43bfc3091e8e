-- yield: the owner hands over to the first live waiter and queues at the end under a fresh number; when nobody waits it
-- owns under that number.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue
-- returns      integer = granted to the fresh number; Q<ms> or Q = the fresh number is queued, then :<node> of the exclusive owner; X = gone
if yields then
  function yield(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if not (number or records[i]) and queues ~= 0 then
      local _, own = hand_over(i, queue, job, holder)
      number = own
    end
    if not number then
      -- A write that changes nothing: a replica's "gone" would mean nothing, and this makes it say READONLY.
      redis.call('ZREM', queue, 'b')
      return 'X'
    end
    if not records[i] then
      part(i, holder, tick)
      gives = true
    end
    local given, _, rest, blocked = hand_over(i, queue, job, nil, true)
    local shares = not records[i] and look(i)
    -- Who goes on waits, too.
    rest = rest or not (given or blocked or shares) and gap and rests(i, queue)
    if not given then
      -- A removal needs no memory, and what follows a write is not refused for want of it.
      if records[i] then redis.call('DEL', KEYS[i]) end
      records[i] = false
      local own = not (rest or blocked) and grant(i, job, to, hold, tick)
      if own then return own end
    end
    enqueue(queue, to .. string.sub(entry, #holder + 1), lease)
    return left(i, 'Q')
  end
end
