-- pass: gives a lease to another claim under a fresh number, without a free moment between. If a writer becomes a reader,
-- waiting readers are granted too. A claim that owns the key by this pass already gets the reply of renew.
-- KEYS[i]  record
-- returns  integer = granted to `to`, its number; X = gone
--          R<ms> = `to` adopts a transfer, and the server recovers for so many ms
if passes then
  function pass(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
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
    -- A write that changes nothing. A replica refuses it, so that its "gone" is not believed. And the server does not
    -- refuse a later write of the same script for want of memory.
    call('ZREM', queue, 'b')
    if not number or not record and not share_end(i, holder, tick) then return 'X' end
    -- An adoption is a grant. The lost state may include another adoption.
    if recovering and verb == 'a' then return 'R' .. recovering end
    if not record then remove_share(i, holder, tick) end
    number = grant(i, nil, to, hold, tick, true)
    -- An error here must not hide the grant before it.
    if record and tick ~= '0' then pcall(hand_over, i, queue) end
    return number
  end
end
