-- elect: who leads, who is told of that, and what a leader proclaimed. `g`: who leads; where `to` is w, not if that is of the
-- version `tick`: then the holder's node is told when it is no more, for a lease. `i`: what the holder, if it leads, proclaims:
-- `to` is <seq>:<what>.
-- KEYS[i]         the record
-- KEYS[n+1+i]     the queue
-- KEYS[2*n+1+i]   the memory   hash, expires with the leader's lease, or the last of those who watch
--                   number   the number of the grant by which somebody led who proclaimed something
--                   version  a number of the clock, of that
--                   seq      which of those of this leader
--                   said     what
--                   w<node>  the last ms for which it wants to be told
-- returns         T = nobody leads, T<number>:<version>:<node>:, and then nothing, or = and what was proclaimed;
--                 H<version> = watched; 0 = proclaimed; X = the holder does not lead
-- A number as it is written here. One that no node can read, or reads as another text, would spoil a whole batch.
local function is_number(text)
  return string.find(text or '', '^[1-9]%d*$') and text + 0 < 9007199254740992
end

function leads(i)
  local node_ends, number = string.match(records[i] or '', '^%x+():%d+:%x+:(%d+)$')
  return node_ends == 33 and is_number(number) and number
end

-- A key lives for so many ms at least.
local function lives(key, time)
  if redis.call('PTTL', key) < time + 0 then redis.call('PEXPIRE', key, time) end
end

-- Whether somebody watches still. What is no time is past.
local function watches(key, field)
  return (tonumber(redis.call('HGET', key, field)) or 0) >= ms
end

-- Whoever watches is told, and has to look before it is told again.
local function tell(i, key)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.byte(field) == 119 then
      if watches(key, field) then
        -- Its count decides nothing, and who watches looks for itself.
        redis.pcall('PUBLISH', 'tenure1:n:' .. string.sub(field, 2), '1 changed election ' .. KEYS[i])
      end
      redis.call('HDEL', key, field)
    end
  end
end

-- What follows an act of somebody who led by that number, if it led: when another leads, or nobody, what was proclaimed before is
-- over, but who leads now may have proclaimed something in the same step; else it lives as long as the lease that was renewed.
function elected(i, led, number, hold)
  local key = KEYS[2 * n + 1 + i]
  if leads(i) ~= led then
    tell(i, key)
    if redis.call('HGET', key, 'number') ~= leads(i) then redis.call('DEL', key) end
  elseif number then
    lives(key, hold)
  end
end

if asks then
  -- One more who watches. The dead make room for whoever comes.
  local function watch(key, node, lease)
    if redis.call('HSET', key, 'w' .. node, format('%d', ms + lease)) == 1 then
      for _, field in ipairs(redis.call('HKEYS', key)) do
        if string.byte(field) == 119 and not watches(key, field) then redis.call('HDEL', key, field) end
      end
    end
    lives(key, lease)
  end

  local function proclaim(key, number, to)
    local seq, said = string.match(to, '^(%d+):(.*)$')
    local known = redis.call('HMGET', key, 'number', 'seq')
    if known[1] == number and (tonumber(known[2]) or -1) >= seq + 0 then return end
    local version = last + 1
    if version < us then version = us end
    local text = format('%d', version)
    redis.call('HSET', key, 'number', number, 'version', text, 'seq', seq, 'said', said)
    last, last_text = version, text
    return true
  end

  function ask(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    local key = KEYS[2 * n + 1 + i]
    -- A write that changes nothing. A replica refuses it, whose answers would mean nothing; and what follows a write is not
    -- refused for want of memory.
    redis.call('ZREM', queue, 'b')
    if not records[i] and queues ~= 0 then hand_over(i, queue) end
    local number = leads(i)
    local node = string.match(records[i] or '', '^%x+')
    if verb == 'i' then
      if not number or find(records[i], holder, 1, true) ~= 1 then return 'X' end
      if proclaim(key, number, to) then
        -- Whoever asks may have another lease in mind than the leader has.
        local left = redis.call('PTTL', KEYS[i])
        lives(key, left > 0 and left or hold)
        tell(i, key)
      end
      return 0
    end
    local known = redis.call('HMGET', key, 'number', 'version', 'said')
    local version, said = number or '0', ''
    if number and known[1] == number and is_number(known[2]) and known[3] then version, said = known[2], '=' .. known[3] end
    if to == 'w' and tick == version then
      watch(key, string.match(holder, '^%x+'), lease)
      return 'H' .. version
    end
    return number and 'T' .. number .. ':' .. version .. ':' .. node .. ':' .. said or 'T'
  end
end
