-- renew: the owner's lease to its full length; a waiter counts as alive, and moves a free key on. Never creates.
-- KEYS[i]  the record
-- returns  integer = granted, its number; Q<ms> or Q = queued; O = the tick is over; X = gone
if t.r then
  function t.renew(i, job, holder, entry, lease, hold, tick)
    local number = t.owned_by(i, holder)
    if number then
      t.extend(i, hold)
      return number
    end
    local waits = t.touch(i, job, entry, lease, tick)
    if not t.records[i] then
      t.settle(i, job, entry)
      number = t.owned_by(i, holder)
      if number then return number end
    end
    if waits then return t.left(i, 'Q') end
    return job and not t.is_open(job, tick) and 'O' or 'X'
  end
end
