-- job: what is known of a job, who may still wait for it, and the grant that is remembered. What queue.lua has made is
-- made anew here where a tick makes a difference; all that calls it then meets the new one.
-- KEYS[n+1+i]    the queue    its members end in the mark: <node>:<claim>:<nonce>:<lease>:<hold>:<mark>
-- KEYS[2*n+1+i]  the memory   hash, never expires
--                  mark     the tick that was granted last, in ms since 1970
--                  done     1 when it was run to its end
--                  attempt  how often it was granted
--                  winner   <node>:<claim>:<nonce>, to whom it was granted last
--                  skipped  the latest tick that came while an earlier one was running
-- returns        helpers answer an error text, or nil when all went well

-- Of the request that is being treated.
local mark, memory

local function recall(i)
  local key = KEYS[2 * n + 1 + i]
  local found = pcall('HMGET', key, 'mark', 'attempt', 'skipped', 'done', 'winner')
  if found.err then return found.err end
  local numbers = {}
  for j = 1, 3 do
    numbers[j] = found[j] and (tonumber(found[j]) or -1) or 0
    -- A mark that is no number must not bring back ticks that were run.
    if not (numbers[j] >= 0 and numbers[j] <= 9007199254740992) then
      return 'ERR ' .. key .. ' does not hold what is known of a job'
    end
  end
  memory = {
    key = key,
    mark = numbers[1],
    attempt = numbers[2],
    skipped = numbers[3],
    done = found[4] == '1',
    winner = found[5],
  }
end

-- Whether a tick may still be run.
local function open(tick)
  return tick > memory.mark and tick > memory.skipped or tick == memory.mark and not memory.done
end

-- Nobody waits for a tick that is over, or a finished one would be handed to its standby.
local prune_dead = prune
prune = function(i)
  local err = prune_dead(i)
  if err then return err end
  local queue = KEYS[n + 1 + i]
  for _, member in ipairs(call('ZRANGEBYSCORE', queue, 0, '(' .. EARLIEST)) do
    local tick = tonumber(match(member, ':(%d+)$'))
    if tick and not open(tick) then
      local out = pcall('ZREM', queue, member, 'b' .. sub(member, 2))
      if type(out) == 'table' then return out.err end
    end
  end
end

-- The memory before the lease: should the lease fail, an attempt was counted that nobody made, and no more.
local grant_lease = grant
grant = function(i, holder, hold, tick)
  tick = tonumber(tick) or mark
  local attempt = tick == memory.mark and memory.attempt + 1 or 1
  local set = pcall('HSET', memory.key, 'mark', format('%d', tick), 'done', '0', 'attempt', format('%d', attempt),
    'winner', sub(holder, 1, -2))
  if type(set) == 'table' then return nil, set.err end
  memory.mark, memory.done, memory.attempt, memory.winner = tick, false, attempt, sub(holder, 1, -2)
  told = '1 job %s %s %s %s ' .. format('%d ', attempt)
  return grant_lease(i, holder, hold)
end
