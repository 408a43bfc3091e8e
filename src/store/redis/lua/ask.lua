-- ask: what is known of a job. A free one is moved on. `o`: the tick that was begun and has not ended well, and is not
-- older than the word `tick` says, in ms. `to` is <print>:<over>: the asker's fingerprint, which is kept, and the latest
-- tick that it knows to be over. If that is open, the server came back with an older copy, and takes it for over. `z`: a
-- mark ahead of the server's clock is brought back to it. `v`: whether the holder owns the job, for this tick. `m`: the
-- same, and what the runs of the tick have left. `s`: the same, and `to`, <seq>:<data>, is kept if it does.
-- KEYS[i]       the record
-- KEYS[n+1+i]   the queue
-- returns       U<open tick, or 0>:<ahead>:<1 when another fingerprint was kept>:<now>:<1 when a tick that is over was
--               open>:<1 when the holder owns it>:<mark>:<latest tick that went well>:<`passed`, or 0:0>:, and then
--               nothing, or = and what the runs of the tick have left
if asks then
  -- Keeps what a run leaves, unless something later of the same run came first.
  local function save(job, tick, to)
    local colon = find(to, ':', 1, true)
    local seq, run = string.sub(to, 1, colon - 1), format('%d:%d:', tick, job.attempt)
    local kept = job.saved and find(job.saved, run, 1, true) == 1 and string.sub(job.saved, #run + 1) + 0
    if kept and kept >= seq + 0 then return end
    redis.call('HSET', job.key, 'saved', run .. seq, 'data', string.sub(to, colon + 1))
  end

  function ask(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    local print, over, lost = nil, 0, 0
    if verb == 'o' then
      print, over = string.match(to, '^(%d+):(%d+)$')
      over = over + 0
      if job.mark > 0 and over > 0 and over <= ms and job:is_open(over) then
        redis.call('HSET', job.key, 'mark', format('%d', over), 'done', '1')
        job.mark, job.done, lost = over, true, 1
      end
    end
    if not records[i] and queues ~= 0 then
      hand_over(i, queue, job)
      -- Whom it is asked about may be who was next.
      number = find(records[i] or '', holder, 1, true) == 1
    end
    local open, ahead, differs, data = 0, math.max(job.mark, job.skipped, ms) - ms, 0, ''
    local mark = job.mark
    local owns = verb ~= 'o' and verb ~= 'z' and number and tick == mark
    -- As they are: a node that cannot read them does without.
    local found = redis.call('HMGET', job.key, 'well', 'passed')
    if verb == 'z' then
      if ahead > 0 then
        redis.call('HSET', job.key, 'mark', format('%d', ms), 'done', '1')
        if job.skipped > ms then redis.call('HSET', job.key, 'skipped', format('%d', ms)) end
      end
    elseif verb == 'o' then
      -- Here the word says how old the tick may be.
      if job.attempt > 0 and not job.done and mark <= ms and mark + tick >= ms then open = mark end
      if print ~= '0' then
        local kept = redis.call('HGET', job.key, 'print')
        if kept ~= print then redis.call('HSET', job.key, 'print', print) end
        differs = kept and kept ~= print and 1 or 0
      end
    elseif owns and verb == 's' then
      save(job, tick, to)
    elseif owns and verb == 'm' and job.saved and find(job.saved, format('%d:', tick), 1, true) == 1 then
      data = '=' .. (redis.call('HGET', job.key, 'data') or '')
    end
    return format('U%d:%d:%d:%d:%d:%d:%d:%s:%s:', open, ahead, differs, ms, lost, owns and 1 or 0, mark, found[1] or '0', found[2] or '0:0') .. data
  end
end
