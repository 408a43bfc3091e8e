-- job_finish: the tick was run to its end; then as leave. Counts for the latest winner also when its record is gone.
-- KEYS[n+1+i]  the queue
-- holder       <node>:<claim>:<nonce>:
-- lease, hold  as leave has them
-- returns      0 = done; N = was not there; E<error>
local function finish(i, holder, lease, hold)
  local finished = mark == memory.mark and memory.winner == sub(holder, 1, -2)
  if finished then
    -- Only the first write of a script is refused for want of memory, and this makes one that needs none.
    pcall('ZREM', KEYS[n + 1 + i], 'b')
    local set = pcall('HSET', memory.key, 'done', '1')
    if type(set) == 'table' then return 'E' .. set.err end
    memory.done = true
  end
  local reply = leave(i, holder, lease, hold)
  return finished and reply == 'N' and 0 or reply
end
