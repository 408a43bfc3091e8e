-- job_claim: run a tick, if it is due and was not run, and nobody is running it or an earlier one.
-- KEYS[i]      the lease record
-- waits        whether the caller stands by when somebody runs it
-- holder       <node>:<claim>:<nonce>:
-- lease        in ms
-- hold         in ms: the lease and the margin
-- returns      integer = won, its number; O = the tick is over; F<ms> = it comes in so many ms; Q<ms> or Q = queued;
--              B<ms> or B = busy; E<error>
local function claim(i, waits, holder, lease, hold)
  local entry = holder .. lease .. ':' .. hold .. tail
  if not records[i] then
    local err = settle(i, entry)
    if err then return 'E' .. err end
  end
  local number = owned(i, holder)
  if number then
    local err = extend(i, hold)
    return err and 'E' .. err or number
  end
  if not open(mark) then return 'O' end
  if mark > ms then return format('F%d', mark - ms) end
  if not records[i] then
    local new, err = grant(i, holder, hold)
    return new or 'E' .. err
  end
  if mark > memory.mark then
    -- A slow job overlaps nobody, and what it made wait is not run late by somebody else either.
    local set = pcall('HSET', memory.key, 'skipped', format('%d', mark))
    if type(set) == 'table' then return 'E' .. set.err end
    memory.skipped = mark
    return left(i, 'B')
  end
  if not waits then return left(i, 'B') end
  local err = enqueue(i, entry, lease)
  return err and 'E' .. err or left(i, 'Q')
end
