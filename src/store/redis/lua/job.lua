-- job: what is known of a job, and which of its ticks may be run.
-- KEYS[2*n+1+i]  the memory   hash, never expires
--                  mark     the tick that was granted last, in ms since 1970
--                  done     1 when it was run to its end
--                  attempt  how often it was granted
--                  winner   <node>:<claim>:<nonce>, to whom it was granted last
--                  skipped  the latest tick that came while an earlier one was running
-- returns        functions answer what is said above them
local recall
if jobs then
  -- Whether a tick may still be run.
  local function is_open(job, tick)
    return tick > job.mark and tick > job.skipped or tick == job.mark and not job.done
  end

  -- Why a tick cannot be run at all, by the job's mark and the server's clock; nil when it can.
  local function judge(job, tick)
    if not is_open(job, tick) then return 'O' end
    if tick > ms then return string.format('F%d', tick - ms) end
  end

  -- One attempt more at a tick, by a new winner. Comes before the lease: should that fail, an attempt was counted that
  -- nobody made, and no more.
  local function count(job, holder, tick)
    job.attempt = tick == job.mark and job.attempt + 1 or 1
    job.mark, job.done, job.winner = tick, false, string.sub(holder, 1, -2)
    redis.call('HSET', job.key, 'mark', string.format('%d', tick), 'done', '0', 'attempt',
      string.format('%d', job.attempt), 'winner', job.winner)
  end

  -- What is known of the job, or an error.
  function recall(i)
    local key = KEYS[2 * n + 1 + i]
    local found = attempt('HMGET', key, 'mark', 'attempt', 'skipped', 'done', 'winner')
    if found.err then return found end
    local numbers = {}
    for j = 1, 3 do
      numbers[j] = found[j] and (tonumber(found[j]) or -1) or 0
      -- A mark that is no number must not bring back ticks that were run.
      if not (numbers[j] >= 0 and numbers[j] <= 9007199254740992) then
        return { err = 'ERR ' .. key .. ' does not hold what is known of a job' }
      end
    end
    return {
      is_open = is_open, judge = judge, count = count,
      key = key,
      mark = numbers[1],
      attempt = numbers[2],
      skipped = numbers[3],
      done = found[4] == '1',
      winner = found[5],
    }
  end
end
