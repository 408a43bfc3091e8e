-- renew: extends an owner's lease to its full length, or notes a waiter's heartbeat and hands over a free key. Never
-- creates, but may assert a lost lease: see assertion.lua.
-- KEYS[i]  record
-- returns  integer = granted, its number; O = the tick is over; C = it was cancelled; S = the tick was never granted and never will be; H =
--          the job is paused; X = gone; Q<ms> or Q = queued, then :<node> of the exclusive owner; P<ms> or P = queued behind a foreign owner
--          R<ms> = queued, or granted to a holder that does not know its number; the server recovers for so many ms
--          L = the assertion is late; ! = an operator revoked the lease
if renews then
  function renew(i, queue, number, job, holder, entry, lease, hold, tick, to)
    -- The hold is then what is left of a fixed lease.
    local fixed = string.byte(to) == 97
    -- The owner may have lengthened its lease since.
    if number and fixed then return number end
    if number then
      if not records[i] then
        join(i, holder, hold, nil, tick)
      else
        redis.call('PEXPIRE', KEYS[i], hold)
      end
      -- A holder that does not know its number holds nothing yet. Its lease may have ended before the loss.
      return recovering and not find(to, '%d') and 'R' .. recovering or number
    end
    if is_revoked then return '!' end
    local asserted = assert_lease and assert_lease(i, queue, job, holder, hold, tick, to)
    if asserted then return asserted end
    if fixed then
      -- A write that changes nothing, as in touch.
      redis.call('ZREM', queue, 'b')
      return 'X'
    end
    local waits = touch(queue, job, entry, lease, tick)
    if not records[i] and queues ~= 0 then
      local _, own = hand_over(i, queue, job, holder)
      if own then return own end
    end
    if waits then return left(i, 'Q') end
    return job and (not job:is_open(tick) and job:over(tick) or job.paused and not job:is_triggered(tick) and 'H') or 'X'
  end
end
