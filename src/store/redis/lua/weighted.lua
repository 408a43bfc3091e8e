-- weighted: counts the claims that share a key. A record that is a string has one owner. While claims share a key, its
-- record is a zset of shares. A reader's share weighs 1, without a limit. A share of permits is written
-- <weight>/<capacity>.
-- KEYS[i]  record     zset, expires with its last share; the first letter tells members apart:
--            h<node>:<claim>:<nonce>:   score = last ms of its lease and margin; for permits, <weight>/<capacity> follows
--            n<node>:<claim>:<nonce>:   score = grant number; a time in µs, so greater than every score of an h
--            w<node>:<claim>:<nonce>:   score = 8 * 10^15 + weight; only for a weight above 1
-- returns  nothing: the comment above each function says what it returns

-- For each key the share that ends first, or false if no claim shares the key; nil before `look` has read it.
local shared = {}
local look, permits_in_use, fits, join, remove_share, end_of, share_end
local has_permits = kind == 'semaphore'
-- The form of a share. Jobs and elections are never shared.
local pattern = has_permits and '^h(%x+:%d+:%x+:)%d+/%d+$' or kind == 'lock' and '^h(%x+:%d+:%x+:)$'

if frees then
  -- Returns the share that ends first, if there is one, and removes expired shares. MGET does not distinguish a key of
  -- another type from a free key. So this function also refuses a record that does not have the form of this kind.
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
  -- Returns how many permits are in use: one for each share, plus the weight above one of the heavy shares. Call `look`
  -- first: it removes expired shares.
  function permits_in_use(i)
    local total = redis.call('ZCOUNT', KEYS[i], '0', '100000000000000')
    local heavy = redis.call('ZRANGEBYSCORE', KEYS[i], '8000000000000000', '+inf', 'WITHSCORES')
    for j = 2, #heavy, 2 do total = total + heavy[j] - 8000000000000001 end
    return total
  end
end

if frees and pattern then
  -- Returns whether one more share fits beside the present ones. A claim without a weight needs the key alone.
  function fits(i, tick)
    local weight, capacity = string.match(tick, '^(%d+)/(%d+)$')
    if not weight then return tick == '1' end
    return permits_in_use(i) + weight <= capacity + 0
  end

  -- Adds a share under the number `text`. Without `text` it renews the holder's share.
  function join(i, holder, hold, text, tick)
    local call, key, expires, left = redis.call, KEYS[i], format('%d', ms + hold), -1
    local share = 'h' .. holder .. (has_permits and tick or '')
    if shared[i] then left = call('PTTL', key) end
    if text then
      -- The lock of a writer that becomes a reader is a string.
      if records[i] then call('DEL', key) end
      local weight = string.match(tick, '^%d+') + 0
      call('ZADD', key, expires, share, text, 'n' .. holder)
      if weight > 1 then call('ZADD', key, format('%d', 8000000000000000 + weight), 'w' .. holder) end
      records[i], shared[i] = false, shared[i] or share
    end
    -- PEXPIRE precedes a renewal because it needs no memory: the server does not refuse a later write of the script.
    call('PEXPIRE', key, left > hold + 0 and format('%d', left) or hold)
    if not text then call('ZADD', key, 'XX', expires, share) end
  end

  -- Returns when the holder's share ends, or nothing if the holder has no such share.
  function end_of(i, holder, tick)
    return redis.call('ZSCORE', KEYS[i], 'h' .. holder .. (has_permits and tick or ''))
  end

  -- As `end_of`, and nothing for a claim that needs the key alone.
  function share_end(i, holder, tick) return tick ~= '0' and end_of(i, holder, tick) end

  -- Removes a share. The record then lives as long as the last of the other shares.
  function remove_share(i, holder, tick)
    local key = KEYS[i]
    redis.call('ZREM', key, 'h' .. holder .. (has_permits and tick or ''), 'n' .. holder, 'w' .. holder)
    local last = redis.call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    shared[i] = false
    if last then
      redis.call('PEXPIREAT', key, last)
      -- Some of the other shares may have expired, so `look` must read the record again.
      shared[i] = nil
    end
  end
end
