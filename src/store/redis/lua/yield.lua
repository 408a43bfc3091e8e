-- yield: the owner hands over to the first live waiter and queues at the end under a fresh number; when nobody waits it
-- owns under that number.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue
-- returns      integer = granted to the fresh number; Q<ms> = the fresh number is queued; X = gone
if t.y then
  function t.yield(i, job, holder, entry, lease, hold, tick, to)
    if not t.records[i] then t.settle(i, job, entry) end
    if not t.owned_by(i, holder) then
      -- A write that changes nothing: a replica's "gone" would mean nothing, and this makes it say READONLY.
      redis.call('ZREM', KEYS[t.n + 1 + i], 'b')
      return 'X'
    end
    if not t.hand_over(i, job) then
      -- A removal needs no memory, and what follows a write is not refused for want of it.
      redis.call('DEL', KEYS[i])
      t.records[i] = false
      return t.grant(i, job, to, hold, tick)
    end
    t.enqueue(i, to .. string.sub(entry, #holder + 1), lease)
    return t.left(i, 'Q')
  end
end
