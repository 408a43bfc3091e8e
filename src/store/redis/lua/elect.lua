-- elect: who leads, who is told of that, and what a leader proclaimed. `g`: who leads; where `to` is w, not if that is of the
-- version `tick`: then the holder's node is told when it is no more, for a lease. `i`: what the holder, if it leads, proclaims:
-- `to` is <seq>:<what>. A claim with a value, which is `to`, has it proclaimed when its holder becomes the leader.
-- KEYS[i]         the record
-- KEYS[n+1+i]     the queue
-- KEYS[2*n+1+i]   the memory   hash, expires with the leader's lease, or the last of those who watch
--                   number   the number of the grant by which somebody led who proclaimed something
--                   version  a number of the clock, of that
--                   seq      which of those of this leader
--                   said     what
--                   c<holder>  <lease>:<hold>:<value> of a candidate that waits: proclaimed when it becomes the leader
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

-- Whoever watches is told, and has to look before it is told again. Returns the fields of candidates with a value.
local function tell(i, key)
  local candidates = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.byte(field) == 119 then
      if watches(key, field) then
        -- Its count decides nothing, and who watches looks for itself.
        redis.pcall('PUBLISH', 'tenure1:n:' .. string.sub(field, 2), '1 changed election ' .. KEYS[i])
      end
      redis.call('HDEL', key, field)
    elseif string.byte(field) == 99 then
      candidates[#candidates + 1] = field
    end
  end
  return candidates
end

-- Returns the fields of candidates with a value.
local function candidates_of(key)
  local candidates = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.byte(field) == 99 then candidates[#candidates + 1] = field end
  end
  return candidates
end

-- Removes the values of candidates that do not wait any more, and proclaims that of the new leader, if there is one.
local function settle_values(i, key, candidates, leader, hold)
  for _, field in ipairs(candidates) do
    local holder = string.sub(field, 2)
    local times, value = string.match(redis.call('HGET', key, field) or '', '^(%d+:%d+):(.*)$')
    local leads_now = leader and value and find(records[i], holder, 1, true) == 1
    if leads_now then
      redis.call('HSET', key, 'number', leader, 'version', leader, 'seq', '0', 'said', value)
      local left = redis.call('PTTL', KEYS[i])
      lives(key, left > 0 and left or hold)
    end
    if leads_now or not (times and redis.call('ZSCORE', KEYS[n + 1 + i], 'b' .. holder .. times)) then
      redis.call('HDEL', key, field)
    end
  end
end

-- What follows an act of somebody who led by that number, if it led: when another leads, or nobody, what was proclaimed before is
-- over, but who leads now may have proclaimed something in the same step; else it lives as long as the lease that was renewed.
function elected(i, led, number, hold)
  local key = KEYS[2 * n + 1 + i]
  local leader = leads(i)
  if leader ~= led then
    local candidates = tell(i, key)
    if redis.call('HGET', key, 'number') == leader then
      -- The new leader proclaimed something in the same step.
    elseif candidates[1] then
      redis.call('HDEL', key, 'number', 'version', 'seq', 'said')
    else
      redis.call('DEL', key)
    end
    settle_values(i, key, candidates, leader, hold)
  elseif number then
    lives(key, hold)
  end
end

if claims then
  local claim_plain = claim
  -- Keeps the value before the claim: a refusal for want of memory then leaves nothing behind.
  function claim(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    if to == '' or number then return claim_plain(i, queue, number, job, holder, entry, lease, hold, tick, '', verb) end
    local key = KEYS[2 * n + 1 + i]
    redis.call('HSET', key, 'c' .. holder, lease .. ':' .. hold .. ':' .. to)
    lives(key, lease)
    local led = leads(i)
    local reply = claim_plain(i, queue, number, job, holder, entry, lease, hold, tick, '', verb)
    -- Removes the values of dead candidates. A change of the leader removes them, too.
    if leads(i) == led then settle_values(i, key, candidates_of(key), nil, hold) end
    return reply
  end
end

if renews then
  local renew_plain = renew
  -- The value lives as long as its candidate waits.
  function renew(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if to ~= '' and not number then lives(KEYS[2 * n + 1 + i], lease) end
    return renew_plain(i, queue, number, job, holder, entry, lease, hold, tick)
  end
end

if leaves then
  local leave_plain = leave
  function leave(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if not number then attempt('HDEL', KEYS[2 * n + 1 + i], 'c' .. holder) end
    return leave_plain(i, queue, number, job, holder, entry, lease, hold, tick, to)
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
    local free = not records[i]
    if free and queues ~= 0 then hand_over(i, queue) end
    local number = leads(i)
    if free and number then settle_values(i, key, candidates_of(key), number, hold) end
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
