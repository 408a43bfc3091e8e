-- extend: an owner's lease to that of the request, if it would end before. Who asks is not the owner.
-- KEYS[i]  the record
-- returns  0 = done; X = gone
if extends then
  function extend(i, queue, number, job, holder, entry, lease, hold, tick)
    local call, key = redis.call, KEYS[i]
    if not records[i] and queues ~= 0 then hand_over(i, queue) end
    local known = number and not records[i] and ends(i, holder, tick)
    if not number or not (records[i] or known) then
      -- As in pass.
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
