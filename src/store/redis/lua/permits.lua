-- permits: who has permits of a semaphore. It stands in for plain and share.
-- KEYS[i]  the record     zset with members told apart by their first letter:
--            h<node>:<claim>:<nonce>:<weight>/<capacity>   score = last ms of the lease and margin
--            n<node>:<claim>:<nonce>:                      score = grant number, a time in µs and so above every h
--            w<node>:<claim>:<nonce>:                      score = 8 * 10^15 + weight, only of more than one permit
--          It expires with the last of them.
-- returns  functions answer what is said above them
-- Who of those that have permits is the first to end; nil until somebody looks.
local shared = {}
local look, fits, join, part, ends
local push = '1 semaphore '
-- Of what is done with locks alone some is asked for all the same.
local yield

-- How many permits are held. The dead went out before.
local function used(i)
  local total, heavy = redis.call('ZCOUNT', KEYS[i], '0', '100000000000000'), redis.call('ZRANGEBYSCORE', KEYS[i], '8000000000000000', '+inf', 'WITHSCORES')
  for j = 2, #heavy, 2 do total = total + heavy[j] - 8000000000000001 end
  return total
end

-- Whether somebody has permits. The dead go out.
function look(i)
  if shared[i] == nil then
    local call, key, shares = redis.call, KEYS[i]
    while true do
      shares = call('ZRANGE', key, '0', '0', 'WITHSCORES')
      if not shares[1] then break end
      local holder = string.match(shares[1], '^h(%x+:%d+:%x+:)%d+/%d+$')
      if not holder then error({ err = 'WRONGTYPE the record is no semaphore' }) end
      if shares[2] + 0 >= ms then break end
      call('ZREM', key, shares[1], 'n' .. holder, 'w' .. holder)
    end
    shared[i] = shares[1] or false
  end
  return shared[i]
end

-- Whether there are as many permits as one more wants.
function fits(i, tick)
  local weight, capacity = string.match(tick, '^(%d+)/(%d+)$')
  return used(i) + weight <= capacity + 0
end

-- One more, or a full lease again for who is there.
function join(i, holder, hold, text, tick)
  local call, key, expires, left = redis.call, KEYS[i], format('%d', ms + hold), -1
  if shared[i] then left = call('PTTL', key) end
  if text then
    local weight = string.match(tick, '^%d+') + 0
    call('ZADD', key, expires, 'h' .. holder .. tick, text, 'n' .. holder)
    if weight > 1 then call('ZADD', key, format('%d', 8000000000000000 + weight), 'w' .. holder) end
    shared[i] = shared[i] or 'h'
  end
  -- Before a renewal, as it needs no memory: what follows a write is not refused for want of it.
  call('PEXPIRE', key, left > hold + 0 and format('%d', left) or hold)
  if not text then call('ZADD', key, 'XX', expires, 'h' .. holder .. tick) end
end

-- When its lease ends; nothing when it has none of so many.
function ends(i, holder, tick)
  return redis.call('ZSCORE', KEYS[i], 'h' .. holder .. tick)
end

-- One less. What is left lasts as long as the last of them.
function part(i, holder, tick)
  local key = KEYS[i]
  redis.call('ZREM', key, 'h' .. holder .. tick, 'n' .. holder, 'w' .. holder)
  local last = redis.call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '1')[2]
  if last then redis.call('PEXPIREAT', key, last) end
  shared[i] = nil
end
