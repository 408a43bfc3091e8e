-- renew: the owner's lease to its full length; a waiter counts as alive, and moves a free key on. Never creates.
-- KEYS[i]  the record
-- returns  integer = granted, its number; Q<ms> or Q = queued, then :<node> of the exclusive owner; P<ms> or P = queued behind an owner who is no
--          claim of ours; O = the tick is over; S = the tick was never granted and never is; X = gone
if renews then
  function renew(i, queue, number, job, holder, entry, lease, hold, tick)
    if number then
      if not records[i] then
        join(i, holder, hold, nil, tick)
      elseif job or tick == '0' then
        redis.call('PEXPIRE', KEYS[i], hold)
      else
        -- A node of before the readers handed it over as to a writer.
        join(i, holder, hold, format('%d', number), tick)
        hand_over(i, queue)
      end
      return number
    end
    local waits = touch(queue, job, entry, lease, tick)
    if not records[i] and queues ~= 0 then
      local _, own = hand_over(i, queue, job, holder)
      if own then return own end
    end
    if waits then return left(i, 'Q') end
    return job and not job:is_open(tick) and job:over(tick) or 'X'
  end
end
