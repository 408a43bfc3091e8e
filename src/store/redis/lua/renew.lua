-- renew: the owner's lease to its full length; a waiter counts as alive, and moves a free key on. Never creates.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue
-- holder       <node>:<claim>:<nonce>:
-- lease        in ms
-- hold         in ms: the lease and the margin
-- returns      integer = granted, its number; Q<ms> or Q = queued; X = gone; E<error>
local function renew(i, holder, lease, hold)
  local entry = holder .. lease .. ':' .. hold .. tail
  local number = owned(i, holder)
  if number then
    local err = extend(i, hold)
    return err and 'E' .. err or number
  end
  local err = not records[i] and typed(i) or prune(i)
  if err then return 'E' .. err end
  -- Also when there is no queue: a replica says READONLY to this write, and its "gone" would mean nothing.
  local waits, failed = touch(i, entry, lease)
  if failed then return 'E' .. failed end
  if not records[i] then
    local _, stuck = hand_over(i, entry)
    if stuck then return 'E' .. stuck end
    number = owned(i, holder)
    if number then return number end
  end
  return waits and left(i, 'Q') or 'X'
end
