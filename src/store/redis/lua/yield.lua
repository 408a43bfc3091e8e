-- yield: the owner hands over to the first live waiter and queues at the end under a fresh number; when nobody
-- waits it owns under that number.
-- KEYS[i]      the record
-- KEYS[n+1+i]  the queue
-- holder       <node>:<claim>:<nonce>:
-- lease        in ms
-- hold         in ms: the lease and the margin
-- to           the holder under its fresh number
-- returns      integer = granted to the fresh number; Q<ms> = the fresh number is queued; X = gone; L = late; E<error>
local function yield(i, holder, lease, hold, to)
  if not records[i] then
    local err = settle(i, holder .. lease .. ':' .. hold .. tail)
    if err then return 'E' .. err end
  end
  if not owned(i, holder) then
    -- A write that changes nothing: a replica's "gone" would mean nothing, and this makes it say READONLY.
    local none = pcall('ZREM', KEYS[n + 1 + i], 'b')
    return type(none) == 'table' and 'E' .. none.err or 'X'
  end
  local err = prune(i)
  if err then return 'E' .. err end
  local gone = pcall('DEL', KEYS[i])
  if type(gone) == 'table' then return 'E' .. gone.err end
  records[i] = false
  local handed, failed = hand_over(i)
  if failed then return 'E' .. failed end
  if not handed then
    local number, refused = grant(i, to, hold)
    return number or 'E' .. refused
  end
  local stuck = enqueue(i, to .. lease .. ':' .. hold .. tail, lease)
  return stuck and 'E' .. stuck or left(i, 'Q')
end
