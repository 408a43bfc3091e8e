-- downgrade: a writer goes on as a reader under a fresh number, and lets readers in.
-- returns  integer = granted to the fresh number; X = gone
local downgrade
if downs then
  function downgrade(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if not (number and records[i]) then
      redis.call('ZREM', queue, 'b')
      return 'X'
    end
    local number = grant(i, nil, to, hold, '1')
    hand_over(i, queue)
    return number
  end
end
