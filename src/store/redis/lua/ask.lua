-- ask: answers a call about a job. If the job has no owner, its key first goes to the next live waiter.
--   o = open:   returns the tick that was begun and has not ended. `to` is
--               <print>:<over>:<name> <plan>: the caller's fingerprint, its name and when the job is due, which the store
--               keeps, and the latest tick that the caller knows to be over. If that tick is open here, the server came
--               back with an older copy of its data. Then the store marks the tick as over.
--   x = withdraw: the caller's node has the job no more.
--   z = reset:  sets a mark ahead of the server's clock back to the clock.
--   k = ending: returns whether an operator cancelled the run with the number `to`.
--   v = verify: returns whether the holder owns the job for this tick.
--   m = recall: as v, and returns the data that the runs of the tick saved.
--   s = save:   as v, and saves `to`, which is <seq>:<data>, if the holder owns the job.
-- KEYS[i]       record
-- KEYS[n+2+i]   queue
-- returns       U<open tick, or 0>:<ms by which the mark is ahead of the clock>:<1 = another fingerprint was kept>:<now>:
--               <1 = a tick that is over was open>:<1 = the holder owns the job>:<mark>:<latest tick that went well>:
--               <`passed`, or 0:0>:<when the store first saw the caller's fingerprint, or 0>: then nothing, or = and the
--               saved data; of o ! and when the latest pause ended, ! and <since> <by> <why> of a pause, ! and the run that is
--               wanted as it is kept, if there is one of these; of k ~ if it was cancelled.
if asks then
  -- Saves data of a run, unless data with a later number of the same run came first.
  local function save(job, tick, to)
    local colon = find(to, ':', 1, true)
    local seq, run = string.sub(to, 1, colon - 1), format('%d:%d:', tick, job:attempt_at(tick))
    local kept = job.saved and find(job.saved, run, 1, true) == 1 and string.sub(job.saved, #run + 1) + 0
    if kept and kept >= seq + 0 then return end
    redis.call('HSET', job.key, 'saved', run .. seq, 'data', string.sub(to, colon + 1))
  end

  -- Returns whether an operator cancelled the run with this number. Mostly it is one of the latest.
  local function was_cancelled(job, number)
    for r = job.run, math.max(1, job.run - 99), -1 do
      local place = format('%d', r % 100)
      local run = redis.call('HGET', job.key, 'h' .. place)
      if run and string.match(run, '^%d+:%d+:%d+:(%d+):') == number then
        return find(redis.call('HGET', job.key, 'e' .. place) or '', format('%d:cancelled:', r), 1, true) == 1
      end
    end
  end

  -- Removes the nodes of the job that did not look for the time of two looks.
  local function forget_gone(job)
    local gone = {}
    for _, field in ipairs(redis.call('HKEYS', job.key)) do
      if #field == 33 and string.byte(field) == 119 then
        local ends = string.match(redis.call('HGET', job.key, field) or '', '^(%d+):')
        if not ends or ends + 0 < ms then gone[#gone + 1] = field end
      end
    end
    if gone[1] then redis.call('HDEL', job.key, unpack(gone)) end
  end

  -- Notes the caller's fingerprint in `change`. Returns 1 if the latest caller had another, else 0, and when the store first saw it.
  -- During a deploy two are in use, and each node asks once a lease, or in 5 s if its lease is shorter. So one that comes
  -- back soon after it was replaced was never out of use. A time in the future came from a wrong clock.
  local function note(job, print, lease, change)
    if print == '0' then return 0, '0' end
    local found = redis.call('HMGET', job.key, 'print', 'former')
    local kept, since = string.match(found[1] or '', '^(%d+):(%d+)$')
    if kept == print and since + 0 <= ms then return 0, since end
    local former, began, ended = string.match(found[2] or '', '^(%d+):(%d+):(%d+)$')
    local in_use = former == print and began + 0 <= ms and ms <= ended + 2 * math.max(lease, 5000)
    since = in_use and began or format('%d', ms)
    change[#change + 1], change[#change + 2] = 'print', print .. ':' .. since
    if not kept or kept == print then return 0, since end
    change[#change + 1], change[#change + 2] = 'former', found[1] .. ':' .. format('%d', ms)
    return 1, since
  end

  -- Notes what the caller told. Without memory nothing is noted, and the next look tells it again. A replica refuses the
  -- write, so that its answer is not believed.
  local function keep(job, print, lease, name, plan)
    if not job.told then forget_gone(job) end
    local change = { 'w' .. job.node, format('%d:', ms + 2 * math.max(lease, 5000)) .. name }
    -- A plan that is too long is not told, and the one before is no longer true.
    if plan == '' then redis.call('HDEL', job.key, 'plan') else change[3], change[4] = 'plan', plan end
    local differs, since = note(job, print, lease, change)
    local kept = redis.pcall('HSET', job.key, unpack(change))
    if type(kept) == 'table' and find(kept.err, 'READONLY', 1, true) then error(kept.err, 0) end
    return differs, since
  end

  function ask(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    local print, over, lost, name, plan = nil, 0, 0, nil, nil
    if verb == 'o' then
      print, over, name, plan = string.match(to, '^(%d+):(%d+):(%S*) (%S*)$')
      over = over + 0
      if job.mark > 0 and over > 0 and over <= ms and job:is_open(over) then
        redis.call('HSET', job.key, 'mark', format('%d', over), 'done', '1')
        job.mark, job.done, lost = over, true, 1
      end
    end
    if not records[i] and queues ~= 0 then
      hand_over(i, queue, job)
      -- The holder in question may be the waiter that was just granted.
      number = find(records[i] or '', holder, 1, true) == 1
    end
    local open, ahead, differs, since, data = 0, math.max(job.mark, job.skipped, ms) - ms, 0, '0', ''
    local mark = job.mark
    local owns = not find('ozxk', verb, 1, true) and number and (tick == mark or tick == job.wanted)
    -- These two are returned as they are stored. A node that cannot read them ignores them.
    local found = redis.call('HMGET', job.key, 'well', 'passed')
    if verb == 'z' then
      if ahead > 0 then
        redis.call('HSET', job.key, 'mark', format('%d', ms), 'done', '1')
        if job.skipped > ms then redis.call('HSET', job.key, 'skipped', format('%d', ms)) end
        if (tonumber(found[1]) or 0) > ms then redis.call('HSET', job.key, 'well', format('%d', ms)) end
      end
    elseif verb == 'o' then
      local wanted = job.wanted and job:is_open(job.wanted) and format('%d:%d', job.wanted, job.wanted_attempt) .. job.wanted_text
      local resumed = redis.call('HGET', job.key, 'resumed')
      if job.paused or wanted or resumed then
        data = '!' .. (resumed or '') .. '!' .. (job.paused or '') .. '!' .. (wanted or '')
      end
      if job.attempt > 0 and not job.done and mark <= ms then open = mark end
      differs, since = keep(job, print, lease, name, plan)
    elseif verb == 'k' then
      if was_cancelled(job, to) then data = '~' end
    elseif verb == 'x' then
      redis.call('HDEL', job.key, 'w' .. job.node)
    elseif owns and verb == 's' then
      save(job, tick, to)
    elseif owns and verb == 'm' and job.saved and find(job.saved, format('%d:', tick), 1, true) == 1 then
      data = '=' .. (redis.call('HGET', job.key, 'data') or '')
    end
    return format('U%d:%d:%d:%d:%d:%d:%d:%s:%s:%s:', open, ahead, differs, ms, lost, owns and 1 or 0, mark, found[1] or '0', found[2] or '0:0', since) .. data
  end
end
