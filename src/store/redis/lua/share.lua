-- share: who shares a key. A record that is a string has one owner; while readers have it, it is a zset.
-- KEYS[i]       the record     zset with two members for each who shares it, told apart by their first letter:
--                 h<node>:<claim>:<nonce>:   score = last ms of its lease and margin
--                 n<node>:<claim>:<nonce>:   score = grant number, which is a time in µs and so above every h
--               It expires with the last of them.
-- returns       functions answer what is said above them
-- Whether others share a key that is no string; nil until somebody looks.
local shared = {}
local look, fits, join, part, ends
-- What a push begins with.
local push = '1 lock '
if frees then
  -- Whether somebody shares it. The dead go out.
  function look(i)
    if shared[i] == nil then
      local call, key, shares = redis.call, KEYS[i]
      while true do
        shares = call('ZRANGE', key, '0', '0', 'WITHSCORES')
        if not shares[1] then break end
        if not string.match(shares[1], '^h%x+:%d+:%x+:$') then error({ err = 'WRONGTYPE the record is no lock' }) end
        if shares[2] + 0 >= ms then break end
        call('ZREM', key, shares[1], 'n' .. string.sub(shares[1], 2))
      end
      shared[i] = shares[1] ~= nil
    end
    return shared[i]
  end

  -- Whether one more may share it beside those who do.
  function fits(i, tick)
    return tick == '1'
  end

  -- One more, or a full lease again for who is there.
  function join(i, holder, hold, text)
    local call, key, expires, left = redis.call, KEYS[i], format('%d', ms + hold), -1
    if shared[i] then left = call('PTTL', key) end
    if text then
      if records[i] then call('DEL', key) end
      call('ZADD', key, expires, 'h' .. holder, text, 'n' .. holder)
      records[i], shared[i] = false, true
    end
    -- Before a renewal, as it needs no memory: what follows a write is not refused for want of it.
    call('PEXPIRE', key, left > hold + 0 and format('%d', left) or hold)
    if not text then call('ZADD', key, 'XX', expires, 'h' .. holder) end
  end

  -- When its lease ends; nothing when it has none, or not as a reader.
  function ends(i, holder, tick)
    return tick == '1' and redis.call('ZSCORE', KEYS[i], 'h' .. holder)
  end

  -- One less. What is left lasts as long as the last of them.
  function part(i, holder)
    local key = KEYS[i]
    redis.call('ZREM', key, 'h' .. holder, 'n' .. holder)
    local last = redis.call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    if last then redis.call('PEXPIREAT', key, last) end
    shared[i] = nil
  end
end
