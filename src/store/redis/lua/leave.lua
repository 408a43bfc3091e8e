-- leave: the owner hands over to the first live waiter, or deletes; a waiter steps out of the queue.
-- KEYS[i]  the record
-- returns  0 = done; N = was not there
if t.l or t.f then
  function t.leave(i, job, holder, entry)
    local record = t.records[i]
    if t.owned_by(i, holder) then
      -- A queue of a wrong type must not keep the owner from leaving.
      if t.queues ~= 0 then pcall(t.hand_over, i, job) end
      if t.records[i] == record then
        redis.call('DEL', KEYS[i])
        t.records[i] = false
      end
      return 0
    end
    local waited = t.withdraw(i, entry)
    -- What becomes of the others is not the leaver's affair: whoever comes next settles the key.
    if not record then pcall(t.hand_over, i, job) end
    return waited and 0 or 'N'
  end
end
