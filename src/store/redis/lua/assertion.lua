-- assertion: answers an owner's renewal if the record is gone and the key is free for the lease. A number above the clock
-- shows that the server has lost the grant. While the server recovers, the record is written again with its number.
-- KEYS[i]         record
-- KEYS[n+2]       recovering
-- KEYS[2*n+2+i]   memory of an election
-- ARGV[4]         how long a recovery lasts that begins here, in ms
-- returns         integer = the lease is asserted, its number; L = late, and not asserted; nil if there is nothing to assert
local assert_lease
if asserts then
  function assert_lease(i, queue, job, holder, hold, tick, to)
    local call, text = redis.call, string.match(to, '%d+$')
    if not text or records[i] or look(i) and not fits(i, tick) then return end
    local number = text + 0
    -- As in open.lua: the clock must not reach 2^53.
    if number + n >= 9007199254740991 then return end
    if number > last and (not recovering or unconfirmed or recovering < ARGV[4] + 0) then
      -- Grants of this batch are held back even if this cannot be written. The clock is not raised then, so the next
      -- renewal begins the recovery.
      recovering, unconfirmed = ARGV[4] + 0, nil
      -- PEXPIRE comes first because it needs no memory: the server does not refuse the next write for want of memory.
      call('PEXPIRE', KEYS[n + 2], ARGV[4])
      call('SET', KEYS[n + 2], 'number', 'PX', ARGV[4])
    end
    -- The next run of a tick starts from the memory of the job, and that may be lost, too.
    if not recovering or unconfirmed or job then return end
    if late then return 'L' end
    -- ZREM comes first because it needs no memory, as above. The entry of a fixed lease has its whole length, and an
    -- assertion only what is left, so the entry is found by its holder.
    local waited = false
    call('ZREM', queue, 'b')
    for _, member in ipairs(call('ZRANGE', queue, '0', '-1')) do
      if find(member, holder, 1, true) == 2 then
        waited = true
        call('ZREM', queue, member)
      end
    end
    -- The value of a candidate that was removed as dead is not proclaimed late.
    if kind == 'election' and not waited then call('HDEL', KEYS[2 * n + 2 + i], 'c' .. holder) end
    if tick == '0' then
      records[i] = holder .. text
      call('SET', KEYS[i], records[i], 'PX', hold)
    else
      join(i, holder, hold, text, tick)
    end
    if number > last then last, last_text = number, text end
    return number
  end
end
