-- job: reads the memory of a job, and decides which of its ticks may run.
-- KEYS[2*n+2+i]  memory   hash, never expires
--                  mark     the tick that was granted last, in ms since 1970
--                  done     1 if that tick has ended
--                  attempt  how often that tick was granted
--                  winner   <node>:<claim>:<nonce> of the latest grant
--                  skipped  the latest tick that came while an earlier one was running
--                  passed   <tick>:<tick>, the tick granted before the mark, or 0, and the mark
--                  print    <print>:<since> of the latest caller: the fingerprint of service and expression, and when it was
--                           first seen
--                  former   <print>:<since>:<until>: the fingerprint before that, and when it was replaced
--                  well     the latest tick that ended with success
--                  saved    <tick>:<attempt>:<seq> of the saved data
--                  data     the data that the runs of a tick saved
--                  runs     <r>:<tick>: how often a tick was granted, and the tick of the latest run, or 0 once its end is known
--                  h<r mod 100>  <r>:<tick>:<attempt>:<number>:<node>:<name> of run r, for the latest 100 runs
--                  e<r mod 100>  <r>:<outcome>:<ms>:<retries>:<text> of run r, once its end is known
--                  w<node>  <until>:<name> of a node that has the job: until when it counts as one, in ms
--                  plan     <zone>:<expression>: when the job is due
--                  paused   <since> <by> <why> while an operator has paused the job; see job_act.lua
--                  resumed  when the latest pause ended, in ms
--                  wanted   <tick>:<attempt> <since> <by> <why>: the run that an operator triggered, and how often its tick was
--                           granted; missing once a run of it has ended, or it was cancelled
--                A tick of the schedule is when it is due, in ms since 1970. A triggered tick is 2^52 more. It is no tick of the
--                schedule, and neither mark nor skipped nor passed ever name one.
--                Names, texts and expressions are percent-encoded, but colons are not.
-- returns        nothing: the comment above each function says what it returns
do
  local first_triggered = 4503599627370496

  -- Returns whether a tick may still be granted. A triggered tick may be so for a day.
  local function is_open(job, tick)
    if tick >= first_triggered then return tick == job.wanted and ms <= job.wanted_since + 86400000 end
    return tick > job.mark and tick > job.skipped or tick == job.mark and not job.done
  end

  -- Returns whether a claim may wait for a tick: the tick is running, or it is due and open, and the job is not paused. A
  -- triggered tick may be waited for while it is open.
  local function may_wait(job, tick)
    if tick >= first_triggered then return job:is_open(tick) end
    return not job.paused and is_open(job, tick) and (tick == job.mark or tick <= ms)
  end

  -- Returns the reply for a tick that is not open: S if it came during an earlier run and was never granted, else O. The memory
  -- covers the latest two grants only; an older tick gets O.
  local function over(job, tick)
    if tick > job.skipped then return 'O' end
    if tick > job.mark then return 'S' end
    local before, latest = string.match(redis.call('HGET', job.key, 'passed') or '', '^(%d+):(%d+)$')
    return before and latest + 0 == job.mark and tick > before + 0 and tick < job.mark and 'S' or 'O'
  end

  -- Returns why a tick cannot run now, by the job's mark and the server's clock, or nil if it can. `after` is the tick
  -- that must have run before it, if no tick may be passed over.
  local function judge(job, tick, after)
    if not is_open(job, tick) then return over(job, tick) end
    if tick >= first_triggered then return end
    if tick > ms then return format('F%d', tick - ms) end
    if job.paused then return 'H' end
    after = tonumber(after)
    if after and job.known and tick ~= job.mark then
      -- A skipped tick never runs, so no tick waits for it.
      local latest = job.done and math.max(job.mark, job.skipped) or job.mark
      if not (latest == after and job.done) then return format('J%d:%d', latest, job.done and 0 or 1) end
    end
  end

  local function is_triggered(job, tick)
    return tick >= first_triggered
  end

  -- Returns whether a triggered tick waits for the end of the latest tick of the schedule.
  local function is_behind(job, tick)
    return tick >= first_triggered and job.attempt > 0 and not job.done
  end

  -- Returns whether a tick of the schedule that was not granted yet waits for the run of a triggered tick, which owns the record.
  -- That run may be cancelled.
  local function is_beside_trigger(job, record)
    local number = string.match(record or '', ':(%d+)$')
    local run = number and redis.call('HGET', job.key, format('h%d', job.run % 100))
    local tick, of = string.match(run or '', '^%d+:(%d+):%d+:(%d+):')
    return of == number and tick and tick + 0 >= first_triggered
  end

  -- Counts one more attempt at a tick, for a new winner, and adds its run. This comes before the lease: if the lease fails,
  -- an attempt is counted that no node made. That is harmless.
  local function count(job, holder, tick, number)
    -- Data of another tick is useless. If it cannot be deleted, its tick still shows that it belongs to another.
    if job.saved and find(job.saved, format('%d:', tick), 1, true) ~= 1 then
      redis.pcall('HDEL', job.key, 'saved', 'data')
      job.saved = nil
    end
    local is_wanted, change = tick == job.wanted, nil
    job.winner = string.sub(holder, 1, -2)
    if is_wanted then
      job.wanted_attempt = job.wanted_attempt + 1
      change = { 'winner', job.winner, 'wanted', format('%d:%d', tick, job.wanted_attempt) .. job.wanted_text }
    else
      job.attempt = tick == job.mark and job.attempt + 1 or 1
      change = { 'winner', job.winner, 'mark', format('%d', tick), 'done', '0', 'attempt', format('%d', job.attempt) }
      if not (job.known and tick == job.mark) then
        change[9], change[10] = 'passed', format('%d:%d', job.mark, tick)
      end
      job.known, job.mark, job.done = true, tick, false
    end
    local node, last = string.sub(holder, 1, 32), #change
    local told = node == job.node and job.told or node ~= job.node and redis.call('HGET', job.key, 'w' .. node)
    job.run, job.running = job.run + 1, tick
    change[last + 1], change[last + 2] = 'runs', format('%d:%d', job.run, tick)
    change[last + 3], change[last + 4] = format('h%d', job.run % 100), format('%d:%d:%d:%s:%s:%s', job.run, tick,
      job:attempt_at(tick), number, node, string.match(told or '', '^%d+:(.*)$') or '')
    redis.call('HSET', job.key, unpack(change))
  end

  -- Returns how often a tick was granted, if it is the latest one of the schedule or is wanted.
  local function attempt_at(job, tick)
    return tick == job.wanted and job.wanted_attempt or tick == job.mark and job.attempt or 0
  end

  -- Returns the nominal time of a tick that ended with success, or nothing if a later one did.
  local function well_after(job, tick)
    local nominal = tick % first_triggered
    return nominal > job.well and format('%d', nominal) or nil
  end

  -- Reads the memory of the job, and what the node of the holder told, or returns an error.
  function recall(i, holder)
    local key, node = KEYS[2 * n + 2 + i], string.sub(holder, 1, 32)
    local found = attempt('HMGET', key, 'mark', 'attempt', 'skipped', 'done', 'winner', 'saved', 'runs', 'w' .. node, 'paused',
      'wanted', 'well')
    if found.err then return found end
    local numbers = {}
    for j = 1, 3 do
      numbers[j] = found[j] and (tonumber(found[j]) or -1) or 0
      -- A mark that is not a number must not reopen ticks that have run.
      if not (numbers[j] >= 0 and numbers[j] <= 9007199254740992) then
        return { err = 'ERR ' .. key .. ' does not hold what is known of a job' }
      end
    end
    -- A reply that no node can read would spoil the whole batch. The limit keeps the next attempt within 32 bits.
    numbers[2] = math.floor(math.min(numbers[2], 4294967294))
    -- A history that cannot be read begins again.
    local run, running = string.match(found[7] or '', '^(%d+):(%d+)$')
    run = run and tonumber(run) < 9007199254740992 and tonumber(run)
    local wanted, tries, text = string.match(found[10] or '', '^(%d+):(%d+)( %d+ .*)$')
    return {
      is_open = is_open, may_wait = may_wait, over = over, judge = judge, count = count,
      is_triggered = is_triggered, is_behind = is_behind, is_beside_trigger = is_beside_trigger, attempt_at = attempt_at, well_after = well_after,
      key = key,
      known = found[1],
      mark = numbers[1],
      attempt = numbers[2],
      skipped = numbers[3],
      done = found[4] == '1',
      winner = found[5],
      saved = found[6],
      run = run or 0,
      running = run and tonumber(running) or 0,
      node = node,
      told = found[8],
      paused = found[9],
      well = tonumber(found[11] or '0') or 0,
      wanted = wanted and wanted + 0,
      wanted_attempt = tries and math.min(tries + 0, 4294967294),
      wanted_since = wanted and string.match(text, '%d+') + 0,
      wanted_text = text,
    }
  end
end
