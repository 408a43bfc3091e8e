-- finish: ends a tick, writes how its run ended, then leaves. It counts for the latest winner even without its record. An
-- owner that hands its tick over writes only that, and leaves.
-- `to` is <outcome>:<ms>:<retries>:<text> of the run.
-- KEYS[n+2+i]  queue
-- returns      0 = done; N = the holder was neither owner nor waiter
if finishes then
  function finish(i, queue, number, job, holder, entry, lease, hold, tick, to)
    local is_winner = job and job.winner == string.sub(holder, 1, -2)
    local hands_over = find(to, 'handed_over:', 1, true) == 1
    -- A trigger that was not granted yet is a later one, for the same nominal time.
    local is_wanted = job and tick == job.wanted and job.wanted_attempt > 0
    local finished = is_winner and not hands_over and (tick == job.mark or is_wanted)
    local ends_run = is_winner and tick > 0 and tick == job.running and (number or not hands_over)
    if finished or ends_run then
      -- Redis refuses only the first write of a script for want of memory. This write is first, and needs no memory.
      redis.pcall('ZREM', queue, 'b')
      local change = {}
      if ends_run then
        change = { 'runs', format('%d:0', job.run), format('e%d', job.run % 100), format('%d:', job.run) .. to }
        job.running = 0
      end
      if finished and find(to, 'done:', 1, true) == 1 then
        local well = job:well_after(tick)
        if well then change[#change + 1], change[#change + 2] = 'well', well end
      end
      if finished and not is_wanted then
        change[#change + 1], change[#change + 2] = 'done', '1'
        job.done = true
      end
      if change[1] then redis.call('HSET', job.key, unpack(change)) end
      if finished and is_wanted then
        redis.call('HDEL', job.key, 'wanted')
        job.wanted = nil
      end
    end
    local reply = leave(i, queue, number, job, holder, entry)
    -- Saved data of another tick is ignored, so a failure here loses nothing, and must not keep the owner from leaving.
    if finished and job.saved then redis.pcall('HDEL', job.key, 'saved', 'data') end
    return finished and 0 or reply
  end
end
