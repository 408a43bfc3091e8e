-- leave: the owner hands over to the first live waiter, or deletes; a waiter steps out of the queue.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue
-- holder       <node>:<claim>:<nonce>:
-- lease        in ms
-- hold         in ms: the lease and the margin; with the lease it names the waiter's members
-- returns      0 = done; N = was not there; E<error>
local function leave(i, holder, lease, hold)
  if owned(i, holder) then
    -- A queue of a wrong type must not keep the owner from leaving.
    local alone = queues == 0 or prune(i)
    local gone = pcall('DEL', KEYS[i])
    if type(gone) == 'table' then return 'E' .. gone.err end
    records[i] = false
    if not alone then hand_over(i) end
    return 0
  end
  local err = not records[i] and typed(i) or prune(i)
  if err then return 'E' .. err end
  local entry = holder .. lease .. ':' .. hold .. tail
  -- Also when there is no queue: a replica says READONLY to this write, and its "not there" would mean nothing.
  local out = pcall('ZREM', KEYS[n + 1 + i], 'a' .. entry, 'b' .. entry)
  if type(out) == 'table' then return 'E' .. out.err end
  -- What became of the others is not the leaver's affair: whoever comes next settles the key.
  if not records[i] then hand_over(i) end
  return out > 0 and 0 or 'N'
end
