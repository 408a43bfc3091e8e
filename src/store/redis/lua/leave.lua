-- leave: the owner hands over to the first live waiter, or deletes; a waiter steps out of the queue.
-- KEYS[i]  the record
-- returns  0 = done; N = was not there
if leaves then
  function leave(i, queue, number, job, holder, entry, lease, hold, tick)
    local record = records[i]
    if number and not record then
      part(i, holder, tick)
      gives = true
      if queues ~= 0 then pcall(hand_over, i, queue) end
      return 0
    end
    if number then
      -- A queue of a wrong type must not keep the owner from leaving.
      if queues ~= 0 then pcall(hand_over, i, queue, job) end
      if records[i] == record then
        redis.call('DEL', KEYS[i])
        records[i] = false
      end
      return 0
    end
    local waited = redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
    -- What becomes of the others is not the leaver's affair: whoever comes next settles the key.
    if not record then pcall(hand_over, i, queue, job) end
    return waited > 0 and 0 or 'N'
  end
end
