-- renew: extends an owner's lease to its full length, or notes a waiter's heartbeat and hands over a free key. Never
-- creates. An owner names its number in `to`. If the server recovers and has lost the owner's record, and the key is free
-- for it, the record is written again.
-- KEYS[i]    record
-- KEYS[n+1]  clock
-- KEYS[n+2]  recovering
-- ARGV[4]    length of a recovery
-- returns    integer = granted, its number; X = gone
--            O = the tick is over; S = the tick was never granted and never will be
--            Q<ms> or Q = queued, then :<node> of the exclusive owner; P<ms> or P = queued behind a foreign owner
--            R<ms> = the server recovers, and the claim waits or does not know its grant; L = the assertion came late
local assert_lease
if renews and frees then
  -- Removes the entry of a claim, whose lease may have another length now.
  local function remove_entry(queue, holder)
    for _, member in ipairs(redis.call('ZRANGE', queue, '0', '-1')) do
      if find(member, holder, 1, true) == 2 then redis.call('ZREM', queue, member) end
    end
  end

  -- Writes an owner's lost record again under its number `text`, and returns the reply, or nothing.
  function assert_lease(i, queue, job, holder, hold, tick, text)
    local number = text + 0
    if look(i) and not (fits and fits(i, tick)) then return end
    if number > last and not (recovering and recovering >= ARGV[4] + 0) then
      -- The server has lost this grant.
      attempt('DEL', KEYS[n + 2])
      attempt('SET', KEYS[n + 2], '1', 'PX', ARGV[4])
      recovering = ARGV[4] + 0
    end
    if not recovering or job then return end
    if late then return 'L' end
    remove_entry(queue, holder)
    if tick == '0' then
      records[i] = holder .. text
      redis.call('SET', KEYS[i], records[i], 'PX', hold)
    else
      join(i, holder, hold, text, tick)
    end
    if number > last then last, last_text = number, text end
    return number
  end
end

if renews then
  function renew(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if number then
      if not records[i] then
        join(i, holder, hold, nil, tick)
      elseif job or tick == '0' then
        redis.call('PEXPIRE', KEYS[i], hold)
      else
        -- A node of a version before readers handed the key to this reader as to a writer.
        join(i, holder, hold, format('%d', number), tick)
        hand_over(i, queue)
      end
      -- A sender that does not know its grant does not hold yet. Its lease may have ended before the loss.
      return recovering and to == '' and left(i, 'Q') or number
    end
    local asserted = to ~= '' and not records[i] and assert_lease(i, queue, job, holder, hold, tick, to)
    if asserted then return asserted end
    local waits = touch(queue, job, entry, lease, tick)
    if not records[i] and queues ~= 0 then
      local _, own = hand_over(i, queue, job, holder)
      if own then return own end
    end
    if waits then return left(i, 'Q') end
    return job and not job:is_open(tick) and job:over(tick) or 'X'
  end
end
