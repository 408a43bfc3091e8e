-- extend: lengthens an owner's lease to the lease of the request, if it ends earlier. The node that asks is not the
-- owner.
-- KEYS[i]  record
-- returns  0 = done; X = gone
if extends then
  function extend(i, queue, number, job, holder, entry, lease, hold, tick)
    local call, key = redis.call, KEYS[i]
    if not records[i] and queues ~= 0 then hand_over(i, queue) end
    local known = number and not records[i] and share_end(i, holder, tick)
    if not number or not (records[i] or known) then
      -- A write that changes nothing, as in pass.lua.
      call('ZREM', queue, 'b')
      return 'X'
    end
    if not records[i] then
      if known + 0 < ms + hold then join(i, holder, hold, nil, tick) end
    else
      local left = call('PTTL', key)
      if left >= 0 and left < hold + 0 then call('PEXPIRE', key, hold) end
    end
    return 0
  end
end
