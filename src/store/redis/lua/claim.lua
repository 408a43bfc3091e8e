-- claim: the only verb that creates. Take it when it is free and nobody live waits; else stand in the queue, if the
-- caller waits. A tick only if it is due and may still be run.
-- KEYS[i]  the record
-- returns  integer = granted, its number; O = the tick is over; F<ms> = it comes in so many ms; Q<ms> or Q = queued;
--          P<ms> or P = queued behind an owner who is no claim of ours; B<ms> or B = busy
local claim
if claims then
  function claim(i, queue, number, job, holder, entry, lease, hold, tick, waits)
    local key = KEYS[i]
    if number then
      redis.call('PEXPIRE', key, hold)
      return number
    end
    if not records[i] and queues ~= 0 then
      local _, own = hand_over(i, queue, job, entry)
      if own then return own end
    end
    local refused = job and job:judge(tick)
    if refused then return refused end
    if not records[i] then return (grant(i, job, holder, hold, tick)) end
    if job and tick > job.mark then
      -- A slow job overlaps nobody, and what it made wait is not run late by somebody else either.
      redis.call('HSET', job.key, 'skipped', string.format('%d', tick))
      return left(i, 'B')
    end
    if not waits then return left(i, 'B') end
    enqueue(queue, entry, lease)
    return left(i, 'Q')
  end
end
