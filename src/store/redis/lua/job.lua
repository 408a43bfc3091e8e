-- job: what is known of a job, and which of its ticks may be run.
-- KEYS[2*n+1+i]  the memory   hash, never expires
--                  mark     the tick that was granted last, in ms since 1970
--                  done     1 when it was run to its end
--                  attempt  how often it was granted
--                  winner   <node>:<claim>:<nonce>, to whom it was granted last
--                  skipped  the latest tick that came while an earlier one was running
--                  passed   <tick>:<tick>, one that was granted, or 0, and the one granted next
--                  print    the fingerprint of service and expression of whoever asked last
--                  well     the latest tick that was run to its end and went well
--                  saved    <tick>:<attempt>:<seq> of what the runs of a tick have left
--                  data     what that is
-- returns        functions answer what is said above them
do
  -- Whether a tick may still be run.
  local function is_open(job, tick)
    return tick > job.mark and tick > job.skipped or tick == job.mark and not job.done
  end

  -- Whether it may be stood by for: it is being run, or may be run now.
  local function may_wait(job, tick)
    return is_open(job, tick) and (tick == job.mark or tick <= ms)
  end

  -- What somebody is told whose tick is over: S when it came while an earlier one was running and was never granted, else O.
  -- Nothing is known of what came before the latest two grants.
  local function over(job, tick)
    if tick > job.skipped then return 'O' end
    if tick > job.mark then return 'S' end
    local before, latest = string.match(redis.call('HGET', job.key, 'passed') or '', '^(%d+):(%d+)$')
    return before and latest + 0 == job.mark and tick > before + 0 and tick < job.mark and 'S' or 'O'
  end

  -- Why a tick cannot be run, by the job's mark and the server's clock; nil when it can. `after`: the tick that it comes
  -- after, where none is passed over.
  local function judge(job, tick, after)
    if not is_open(job, tick) then return over(job, tick) end
    if tick > ms then return format('F%d', tick - ms) end
    after = tonumber(after)
    if after and job.known and tick ~= job.mark then
      -- What was skipped is never run, so nobody waits for it.
      local latest = job.done and math.max(job.mark, job.skipped) or job.mark
      if not (latest == after and job.done) then return format('J%d:%d', latest, job.done and 0 or 1) end
    end
  end

  -- One attempt more at a tick, by a new winner. Comes before the lease: should that fail, an attempt was counted that
  -- nobody made, and no more.
  local function count(job, holder, tick)
    -- What runs of another tick have left is nothing to this one, which tells by its tick also what could not be removed.
    if job.saved and tick ~= job.mark then
      redis.pcall('HDEL', job.key, 'saved', 'data')
      job.saved = nil
    end
    job.attempt = tick == job.mark and job.attempt + 1 or 1
    local change = { 'mark', format('%d', tick), 'done', '0', 'attempt', format('%d', job.attempt),
      'winner', string.sub(holder, 1, -2) }
    if not (job.known and tick == job.mark) then
      change[9], change[10] = 'passed', format('%d:%d', job.mark, tick)
    end
    job.known, job.mark, job.done, job.winner = true, tick, false, change[8]
    redis.call('HSET', job.key, unpack(change))
  end

  -- What is known of the job, or an error.
  function recall(i)
    local key = KEYS[2 * n + 1 + i]
    local found = attempt('HMGET', key, 'mark', 'attempt', 'skipped', 'done', 'winner', 'saved')
    if found.err then return found end
    local numbers = {}
    for j = 1, 3 do
      numbers[j] = found[j] and (tonumber(found[j]) or -1) or 0
      -- A mark that is no number must not bring back ticks that were run.
      if not (numbers[j] >= 0 and numbers[j] <= 9007199254740992) then
        return { err = 'ERR ' .. key .. ' does not hold what is known of a job' }
      end
    end
    -- A reply that no node can read would spoil its whole batch. One attempt more is still a number of 32 bits.
    numbers[2] = math.floor(math.min(numbers[2], 4294967294))
    return {
      is_open = is_open, may_wait = may_wait, over = over, judge = judge, count = count,
      key = key,
      known = found[1],
      mark = numbers[1],
      attempt = numbers[2],
      skipped = numbers[3],
      done = found[4] == '1',
      winner = found[5],
      saved = found[6],
    }
  end
end
