-- claim: the only verb that creates. Take it when it is free, or readers have it and the caller reads, and nobody live
-- waits; else stand in the queue, if the caller waits. A tick only if it is due and may still be run. While an earlier one
-- is in its way, `to` is q: it waits, and what waited so before it is skipped; a number: it is granted if that was the
-- latest tick and has ended, else none of this; empty: it is skipped.
-- KEYS[i]  the record
-- returns  integer = granted, its number; G<number>:<capacity> = granted, and a holder of permits recorded another capacity;
--          V<number>:<tick> = granted, and this tick, which had not ended, never runs again; O = the tick is over; S = the tick was never granted and never is; F<ms> = it comes in so many ms; J<tick>:<1 when it has not ended> =
--          the latest tick, where another is to be run first; Q<ms> or Q = queued, then :<node> of the exclusive owner;
--          P<ms> or P = queued behind an owner who is no claim of ours; B<ms> or B = busy
if claims then
  function claim(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    local key, waits = KEYS[i], verb == 'w'
    if number then
      if records[i] then redis.call('PEXPIRE', key, hold) else join(i, holder, hold, nil, tick) end
      return number
    end
    -- The capacity that the present holders of permits were told of; of several the share that ends first says it.
    local recorded = string.match(shared[i] or '', '/(%d+)$')
    local _, own, rest, blocked
    if not records[i] and queues ~= 0 then
      _, own, rest, blocked = hand_over(i, queue, job, holder)
    end
    local refused = not own and job and job:judge(tick, to)
    if refused then return refused end
    local open = job and job.mark ~= tick and job.attempt > 0 and not job.done and job.mark
    if not (own or records[i] or rest or blocked) then own = grant(i, job, holder, hold, tick) end
    if own and recorded and recorded ~= string.match(tick, '%d+$') then return format('G%d:%s', own, recorded) end
    if own then return open and format('V%d:%d', own, open) or own end
    if job and tick > job.mark and to ~= '' then
      -- What comes after a tick that has ended waits for no run: somebody else's record is in the way.
      if to ~= 'q' or not waits then return left(i, 'B') end
      if tick - 1 > job.skipped then
        redis.call('HSET', job.key, 'skipped', format('%d', tick - 1))
        job.skipped = tick - 1
      end
    elseif job and tick > job.mark then
      -- A slow job overlaps nobody, and what it made wait is not run late by somebody else either.
      redis.call('HSET', job.key, 'skipped', format('%d', tick))
      return left(i, 'B')
    end
    if not waits then return left(i, 'B') end
    enqueue(queue, entry, lease)
    return left(i, 'Q')
  end
end
