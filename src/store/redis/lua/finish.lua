-- finish: the tick was run to its end, and well if `to` is so; then as leave. Counts for the latest winner also when its record is gone.
-- KEYS[n+1+i]  the queue
-- returns      0 = done; N = was not there
if finishes then
  function finish(i, queue, number, job, holder, entry, lease, hold, tick, to)
    local finished = job and tick == job.mark and job.winner == string.sub(holder, 1, -2)
    if finished then
      -- Only the first write of a script is refused for want of memory, and this makes one that needs none.
      redis.pcall('ZREM', queue, 'b')
      if to == 'well' then
        redis.call('HSET', job.key, 'done', '1', 'well', format('%d', tick))
      else
        redis.call('HSET', job.key, 'done', '1')
      end
      job.done = true
    end
    local reply = leave(i, queue, number, job, holder, entry)
    -- What is left too long is nothing to the next tick, and must not keep the owner from leaving.
    if finished and job.saved then redis.pcall('HDEL', job.key, 'saved', 'data') end
    return finished and 0 or reply
  end
end
