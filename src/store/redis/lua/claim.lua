-- claim: the only verb that creates. Take it when it is free and nobody live waits; else stand in the queue, if
-- the caller waits.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue
-- waits        whether the caller stands in the queue when it is not free
-- holder       <node>:<claim>:<nonce>:
-- lease        in ms
-- hold         in ms: the lease and the margin
-- returns      integer = granted, its number; Q<ms> or Q = queued; B<ms> or B = busy; L = late; E<error>
local function claim(i, waits, holder, lease, hold)
  local entry = holder .. lease .. ':' .. hold .. tail
  if not records[i] and waiting(i) then
    local err = settle(i, entry)
    if err then return 'E' .. err end
  end
  local number = owned(i, holder)
  if number then
    local err = extend(i, hold)
    return err and 'E' .. err or number
  end
  if not records[i] then
    local new, err = grant(i, holder, hold)
    return new or 'E' .. err
  end
  if not waits then return left(i, 'B') end
  local err = enqueue(i, entry, lease)
  return err and 'E' .. err or left(i, 'Q')
end
