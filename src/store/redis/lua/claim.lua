-- claim: grants a free key, or lets a reader join readers, if no live waiter comes first. Otherwise a claim that waits
-- joins the queue. Only this verb creates an owner or a waiter. A tick is granted only if it is due and still open. If
-- an earlier tick of the job has not ended, or a record blocks the key, `to` decides. A tick that comes during a triggered
-- run waits for it, and a triggered tick waits for an earlier tick.
--   q         wait; ticks that waited here before are skipped
--   <number>  grant this tick only if that tick is the latest one and has ended; otherwise answer J
--   empty     skip this tick
-- Of a lock, `to` is 0 if its lease may be kept without a holder; else it is empty.
-- KEYS[i]  record
-- returns  integer = granted, its number
--          G<number>:<capacity> = granted, but a current holder of permits recorded another capacity
--          V<number>:<tick> = granted; the tick in the reply had not ended, and never runs again
--          O = the tick is over; C = it was cancelled; S = the tick was never granted and never will be; F<ms> = the tick is due in so many ms; H =
--              the job is paused
--          J<tick>:<1 = it has not ended> = another tick must run first; the reply has the latest tick
--          Q<ms> or Q = queued, then :<node> of the exclusive owner; P<ms> or P = queued behind a foreign owner
--          R<ms> = queued if it waits and is for no tick; the server recovers for so many ms; B<ms> or B = busy
if claims then
  function claim(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    local key, waits = KEYS[i], verb == 'w'
    if number then
      if records[i] then redis.call('PEXPIRE', key, hold) else join(i, holder, hold, nil, tick) end
      return number
    end
    -- The capacity that the current holders recorded. If they differ, it is the capacity of the share that ends first.
    local recorded = string.match(shared[i] or '', '/(%d+)$')
    local _, own, rest, blocked
    if not records[i] and queues ~= 0 then
      _, own, rest, blocked = hand_over(i, queue, job, holder)
    end
    local refused = not own and job and job:judge(tick, recovering and '' or to)
    if refused then return refused end
    if recovering then
      -- A write that changes nothing: a replica answers READONLY to it, so that its word is not believed.
      redis.call('ZREM', queue, 'b')
      -- No tick waits, because what is known of earlier ticks may be lost.
      if waits and not job then enqueue(queue, entry, lease) end
      return 'R' .. recovering
    end
    local open = job and job.mark ~= tick and job.attempt > 0 and not job.done and job.mark
    local behind = job and job:is_behind(tick)
    if not (own or records[i] or rest or blocked or behind) then own = grant(i, job, holder, hold, tick, nil, not job and to) end
    if own and recorded and recorded ~= string.match(tick, '%d+$') then return format('G%d:%s', own, recorded) end
    if own then return open and format('V%d:%d', own, open) or own end
    if job and tick > job.mark and not job:is_triggered(tick) then
      local beside = job:is_beside_trigger(records[i])
      if to == '' and not beside then
        -- A job never overlaps itself here, and a tick that came during a run is not run late by another node either.
        redis.call('HSET', job.key, 'skipped', format('%d', tick))
        return left(i, 'B')
      end
      -- The earlier tick has ended. So a tick that names it waits for a triggered run, or a foreign record blocks it.
      local names = to ~= '' and to ~= 'q'
      if not waits or names and not beside then return left(i, 'B') end
      if not names and tick - 1 > job.skipped then
        redis.call('HSET', job.key, 'skipped', format('%d', tick - 1))
        job.skipped = tick - 1
      end
    end
    if not waits then return left(i, 'B') end
    enqueue(queue, entry, lease)
    return left(i, 'Q')
  end
end
