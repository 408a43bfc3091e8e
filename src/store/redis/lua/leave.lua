-- leave: hands the owner's key to the first live waiter or deletes its record, or withdraws a waiter.
-- KEYS[i]  record
-- returns  0 = released or withdrawn; N = the holder was neither owner nor waiter
if leaves then
  function leave(i, queue, number, job, holder, entry, lease, hold, tick)
    local record = records[i]
    if (number or is_revoked) and not record then
      remove_share(i, holder, tick)
      gave_share = true
      if queues ~= 0 then pcall(hand_over, i, queue) end
      return 0
    end
    if number or is_revoked then
      -- A queue of a wrong type must not keep the owner from leaving.
      if queues ~= 0 then pcall(hand_over, i, queue, job) end
      if records[i] == record then
        redis.call('DEL', KEYS[i])
        records[i] = false
      end
      return 0
    end
    local waited = redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
    -- An error here must not reach the node that left: the next request about the key hands it over.
    if not record then pcall(hand_over, i, queue, job) end
    return waited > 0 and 0 or 'N'
  end
end
