-- claim: the only verb that creates. Take it when it is free and nobody live waits; else stand in the queue, if the
-- caller waits. A tick only if it is due and may still be run.
-- KEYS[i]  the record
-- returns  integer = granted, its number; O = the tick is over; F<ms> = it comes in so many ms; Q<ms> or Q = queued;
--          B<ms> or B = busy
if t.c or t.w then
  function t.claim(i, job, waits, holder, entry, lease, hold, tick)
    if not t.records[i] then t.settle(i, job, entry) end
    local number = t.owned_by(i, holder)
    if number then
      t.extend(i, hold)
      return number
    end
    local refused = job and t.judge(job, tick)
    if refused then return refused end
    if not t.records[i] then return t.grant(i, job, holder, hold, tick) end
    if job and tick > job.mark then
      -- A slow job overlaps nobody, and what it made wait is not run late by somebody else either.
      redis.call('HSET', job.key, 'skipped', string.format('%d', tick))
      return t.left(i, 'B')
    end
    if not waits then return t.left(i, 'B') end
    t.enqueue(i, entry, lease)
    return t.left(i, 'Q')
  end
end
