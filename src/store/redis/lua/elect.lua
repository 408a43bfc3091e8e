-- elect: knows the leader of an election, its value and its watchers.
--   g = leader:   returns the leader. If `to` is w and `tick` is the current version, the holder's node gets a push when
--                 that version is over, for one lease.
--   i = proclaim: keeps a value of the holder, if it leads. `to` is <seq>:<value>.
--   A claim may have a value, which is `to`. The value is proclaimed when the holder becomes the leader.
-- KEYS[i]         record
-- KEYS[n+2+i]     queue
-- KEYS[2*n+2+i]   memory   hash, expires with the leader's lease, or with the last watcher
--                   number   grant number of the leader that proclaimed
--                   version  version of its value, a number of the clock
--                   seq      number of the value within the leadership
--                   said     the value
--                   c<holder>  <lease>:<hold>:<value> of a waiting candidate, proclaimed when it becomes the leader
--                   w<node>  a watcher: the last ms for which it wants a push
-- returns         T = no leader; T<number>:<version>:<node>: then nothing, or = and the value;
--                 H<version> = watched; 0 = proclaimed; X = the holder does not lead

-- Returns whether a text is a number in the form that this script writes. Another text would spoil a whole batch.
local function is_number(text)
  return string.find(text or '', '^[1-9]%d*$') and text + 0 < 9007199254740992
end

function leads(i)
  local node_ends, number = string.match(records[i] or '', '^%x+():%d+:%x+:(%d+)$')
  return node_ends == 33 and is_number(number) and number
end

-- Makes a key live for at least `time` ms.
local function lives(key, time)
  if redis.call('PTTL', key) < time + 0 then redis.call('PEXPIRE', key, time) end
end

-- Returns whether a watcher still watches. A score that is not a time counts as past.
local function watches(key, field)
  return (tonumber(redis.call('HGET', key, field)) or 0) >= ms
end

-- Pushes to each watcher and removes it. A watcher must ask again before it gets another push. Returns the fields of
-- candidates with a value.
local function tell(i, key)
  local candidates = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.byte(field) == 119 then
      if watches(key, field) then
        -- The number of receivers decides nothing: a watcher also asks by itself.
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
    if leads_now or not (times and redis.call('ZSCORE', KEYS[n + 2 + i], 'b' .. holder .. times)) then
      redis.call('HDEL', key, field)
    end
  end
end

-- Follows each request; `led` is the leader before it. If the leader has changed, watchers get a push, and an old value
-- is deleted; the new leader may have proclaimed in the same step. If the leader renewed, the value lives as long as its
-- lease.
function elected(i, led, number, hold)
  local key = KEYS[2 * n + 2 + i]
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
    local key = KEYS[2 * n + 2 + i]
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
  -- The value of a candidate lives as long as its candidate waits, that of an asserted leader as long as its lease.
  function renew(i, queue, number, job, holder, entry, lease, hold, tick, to)
    local key = KEYS[2 * n + 2 + i]
    if string.byte(to) == 118 and not number then lives(key, lease) end
    local reply = renew_plain(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if not number and type(reply) == 'number' and find(to, '%d') then lives(key, hold) end
    return reply
  end
end

if leaves then
  local leave_plain = leave
  function leave(i, queue, number, job, holder, entry, lease, hold, tick, to)
    if not number then attempt('HDEL', KEYS[2 * n + 2 + i], 'c' .. holder) end
    return leave_plain(i, queue, number, job, holder, entry, lease, hold, tick, to)
  end
end

if asks then
  -- Adds a watcher, and removes expired ones when the watcher is new.
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
    local key = KEYS[2 * n + 2 + i]
    -- A write that changes nothing. A replica refuses it, and so says that its answers mean nothing. And the server does
    -- not refuse a later write of the same script for want of memory.
    redis.call('ZREM', queue, 'b')
    local free = not records[i]
    if free and queues ~= 0 then hand_over(i, queue) end
    local number = leads(i)
    if free and number then settle_values(i, key, candidates_of(key), number, hold) end
    local node = string.match(records[i] or '', '^%x+')
    if verb == 'i' then
      if not number or find(records[i], holder, 1, true) ~= 1 then return 'X' end
      if proclaim(key, number, to) then
        -- The lease in the request may differ from the leader's lease.
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
