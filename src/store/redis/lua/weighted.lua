-- weighted: who shares a key. A record that is a string has one owner. While claims share the key, its record is a zset, and each
-- share has a weight: a reader of a lock weighs one, and no capacity bounds it; a holder of permits says <weight>/<capacity>.
-- KEYS[i]  the record     zset with members told apart by their first letter:
--            h<node>:<claim>:<nonce>:   score = last ms of its lease and margin; of permits <weight>/<capacity> follows
--            n<node>:<claim>:<nonce>:   score = grant number, a time in µs and so above every h
--            w<node>:<claim>:<nonce>:   score = 8 * 10^15 + weight, only of a weight above one
--          It expires with the last of them.
-- returns  functions answer what is said above them

-- The share that ends first, or false where no claim shares the key; nil until a function looks.
local shared = {}
local look, used, fits, join, part, ends
local has_permits = kind == 'semaphore'
-- What a share looks like; nothing of jobs and elections, which are never shared.
local pattern = has_permits and '^h(%x+:%d+:%x+:)%d+/%d+$' or kind == 'lock' and '^h(%x+:%d+:%x+:)$'

if frees then
  -- Returns the share that ends first, if there is one, and removes those that are over. MGET does not tell a key of another
  -- type from a free one, so this also refuses what is no record of the kind.
  function look(i)
    if shared[i] == nil then
      local call, key, first = redis.call, KEYS[i]
      while true do
        first = call('ZRANGE', key, '0', '0', 'WITHSCORES')
        if not first[1] then break end
        local holder = pattern and string.match(first[1], pattern)
        if not holder then error({ err = 'WRONGTYPE the record is no ' .. kind }) end
        if first[2] + 0 >= ms then break end
        call('ZREM', key, first[1], 'n' .. holder, 'w' .. holder)
      end
      shared[i] = first[1] or false
    end
    return shared[i]
  end
end

if frees and has_permits then
  -- How many permits are held: one for each share, and what the heavy ones weigh above that. Shares that were over are gone.
  function used(i)
    local total = redis.call('ZCOUNT', KEYS[i], '0', '100000000000000')
    local heavy = redis.call('ZRANGEBYSCORE', KEYS[i], '8000000000000000', '+inf', 'WITHSCORES')
    for j = 2, #heavy, 2 do total = total + heavy[j] - 8000000000000001 end
    return total
  end
end

if frees and pattern then
  -- Whether one more share may stand beside those that are there. A claim without a weight wants the key alone.
  function fits(i, tick)
    local weight, capacity = string.match(tick, '^(%d+)/(%d+)$')
    if not weight then return tick == '1' end
    return used(i) + weight <= capacity + 0
  end

  -- Adds a share under the number `text`; without one it renews the share of that holder.
  function join(i, holder, hold, text, tick)
    local call, key, expires, left = redis.call, KEYS[i], format('%d', ms + hold), -1
    local share = 'h' .. holder .. (has_permits and tick or '')
    if shared[i] then left = call('PTTL', key) end
    if text then
      -- A reader of an earlier version owned the lock alone.
      if records[i] then call('DEL', key) end
      local weight = string.match(tick, '^%d+') + 0
      call('ZADD', key, expires, share, text, 'n' .. holder)
      if weight > 1 then call('ZADD', key, format('%d', 8000000000000000 + weight), 'w' .. holder) end
      records[i], shared[i] = false, shared[i] or share
    end
    -- Before a renewal, as it needs no memory: what follows a write is not refused for want of it.
    call('PEXPIRE', key, left > hold + 0 and format('%d', left) or hold)
    if not text then call('ZADD', key, 'XX', expires, share) end
  end

  -- When the share of a holder ends; nothing if it has no such share.
  function ends(i, holder, tick)
    return tick ~= '0' and redis.call('ZSCORE', KEYS[i], 'h' .. holder .. (has_permits and tick or ''))
  end

  -- Removes a share. The key lasts as long as the last of the others.
  function part(i, holder, tick)
    local key = KEYS[i]
    redis.call('ZREM', key, 'h' .. holder .. (has_permits and tick or ''), 'n' .. holder, 'w' .. holder)
    local last = redis.call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    shared[i] = false
    if last then
      redis.call('PEXPIREAT', key, last)
      -- The others may be over.
      shared[i] = nil
    end
  end
end
