-- pass: a lease goes from its owner to another under a fresh number, with nobody in between; of a writer that goes on as a
-- reader, readers are let in then. Who owns it already by that pass is answered as by renew.
-- KEYS[i]  the record
-- returns  integer = granted to `to`, its number; X = gone
if passes then
  function pass(i, queue, number, job, holder, entry, lease, hold, tick, to)
    local call, key, record = redis.call, KEYS[i], records[i]
    local old = record and find(record, to, 1, true) == 1 and tonumber(string.sub(record, #to + 1))
    if old then
      call('PEXPIRE', key, hold)
      return old
    end
    old = shared[i] and tonumber(call('ZSCORE', key, 'n' .. to) or nil)
    if old then
      join(i, to, hold, nil, tick)
      return old
    end
    -- A write that changes nothing: a replica's "gone" would mean nothing, and this makes it say READONLY. And what follows a
    -- write is not refused for want of memory.
    call('ZREM', queue, 'b')
    if not number or not record and not ends(i, holder, tick) then return 'X' end
    if not record then part(i, holder, tick) end
    number = grant(i, nil, to, hold, tick, true)
    -- An error here must not deny the grant before it.
    if record and tick ~= '0' then pcall(hand_over, i, queue) end
    return number
  end
end
