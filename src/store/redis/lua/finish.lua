-- finish: ends a tick, with success if `to` is `well`, then leaves. It counts for the latest winner even without its
-- record.
-- KEYS[n+2+i]  queue
-- returns      0 = done; N = the holder was neither owner nor waiter
if finishes then
  function finish(i, queue, number, job, holder, entry, lease, hold, tick, to)
    local finished = job and tick == job.mark and job.winner == string.sub(holder, 1, -2)
    if finished then
      -- Redis refuses only the first write of a script for want of memory. This write is first, and needs no memory.
      redis.pcall('ZREM', queue, 'b')
      if to == 'well' then
        redis.call('HSET', job.key, 'done', '1', 'well', format('%d', tick))
      else
        redis.call('HSET', job.key, 'done', '1')
      end
      job.done = true
    end
    local reply = leave(i, queue, number, job, holder, entry)
    -- Saved data of another tick is ignored, so a failure here loses nothing, and must not keep the owner from leaving.
    if finished and job.saved then redis.pcall('HDEL', job.key, 'saved', 'data') end
    return finished and 0 or reply
  end
end
