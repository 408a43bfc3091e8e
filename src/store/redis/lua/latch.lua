-- latch: executes all calls about latches. A latch has no owner and no queue.
--   t = set:         sets the latch, once per name and life. `to` is <count>:<life in ms>:<id of the call>.
--   n = count down:  lowers the count by one, once per id. `to` is the id. `tick` is <since>:<until>:<generation that is
--                    meant, or 0>:<1 if an earlier request may have been executed>.
--   u = count:       returns the count.
--   h = zero:        returns whether the count is zero. If not, the holder's node gets a push at zero, for one lease.
--                    `tick` is the generation that is meant, or 0.
-- Each life of a latch has a generation, numbered by the clock. A count-down has no effect on a generation set after its
-- call.
-- KEYS[i]           record     hash, expires with the life of the latch
--                     gen      number of this life
--                     by       id of the call that set the latch
--                     left     current count
--                     i<id>    a call that counted in this generation; the value is the count after it
-- KEYS[n+2+i]       watchers   zset, node = last ms for which it wants a push; expires with the last watcher
-- KEYS[n+1]         clock
-- ARGV[at+1..at+6]  all words of a request
-- returns           {server time in µs, one reply per request}
--                   Y = set by this call; D<count>; K = not set; H<generation> = not zero, and the node watches
--                   M<generation> = set at about the time of the call, and nothing was done
--                   C = as M, but an earlier request may have been executed; Z = the generation of the call is over
--                   L = late; E<error>

-- Returns why a count-down has no effect on generation `gen`, or nil if it counts.
local function refused(gen, tick)
  local since, till, of, again = string.match(tick, '^(%d+):(%d+):(%d+):(%d)$')
  if of == gen or of == '0' and gen + 0 <= since + 0 then return end
  if of ~= '0' then return 'Z' end
  if again == '0' then return 'M' .. gen end
  -- If `gen` is ahead of the clock, the clock was set back after it, and the two cannot be compared.
  return (gen + 0 <= till + 0 or gen + 0 > us) and 'C' or 'Z'
end

-- Executes one call and returns its reply.
local function latch(i, queue, verb, holder, lease, tick, to)
  local call, key = redis.call, KEYS[i]
  if records[i] then error({ err = 'WRONGTYPE the record is no latch' }) end
  local known = call('HMGET', key, 'gen', 'by', 'left')
  local gen, left = known[1], tonumber(known[3] or nil)
  -- A reply that no node can read would spoil the whole batch.
  local is_whole = left and find(known[3], '^%d%d?%d?%d?%d?$') and find(gen or '', '^[1-9]%d*$')
  if is_whole and gen + 0 >= 9007199254740992 then is_whole = false end
  if not is_whole and call('EXISTS', key) == 1 then error({ err = 'WRONGTYPE the record is no latch' }) end
  if verb == 't' and not gen then
    local number = last + 1
    if number < us then number = us end
    local count, life, id = string.match(to, '^(%d+):(%d+):(.*)$')
    local text = format('%d', number)
    call('HSET', key, 'gen', text, 'by', id, 'left', count)
    call('PEXPIRE', key, life)
    last, last_text = number, text
    return 'Y'
  end
  -- A write that changes nothing. A replica refuses it, and so says that its answers mean nothing. And the server does
  -- not refuse a later write of the same script for want of memory.
  call('ZREM', queue, 'b')
  if not gen then return 'K' end
  if verb == 't' and known[2] == string.match(to, '^%d+:%d+:(.*)$') then return 'Y' end
  if verb == 't' or verb == 'u' then return 'D' .. left end

  if verb == 'n' then
    local before = call('HGET', key, 'i' .. to)
    if before then return 'D' .. before end
    if left == 0 then return 'D0' end
    local why = refused(gen, tick)
    if why then return why end
    left = format('%d', left - 1)
    call('HSET', key, 'left', left, 'i' .. to, left)
    if left == '0' then
      for _, node in ipairs(call('ZRANGEBYSCORE', queue, format('%d', ms), '+inf')) do
        -- The number of receivers decides nothing: a watcher also asks by itself.
        redis.pcall('PUBLISH', 'tenure1:n:' .. node, '1 latch ' .. key)
      end
      call('DEL', queue)
    end
    return 'D' .. left
  end
  -- The store does not know whether an earlier life came to zero.
  if tick ~= '0' and tick ~= gen then return 'K' end
  if left == 0 then return 'D0' end
  for _, node in ipairs(call('ZRANGEBYSCORE', queue, '0', format('(%d', ms))) do call('ZREM', queue, node) end
  local rest = call('PTTL', queue)
  call('ZADD', queue, format('%d', ms + lease), string.match(holder, '^%x+'))
  call('PEXPIRE', queue, rest > lease + 0 and format('%d', rest) or lease)
  return 'H' .. gen
end

for i = 1, n do
  local verb, holder, lease, hold, tick, to = unpack(ARGV, at + 1, at + 6)
  local reply = 'L'
  if not (late and verb == 't') then
    local well
    well, reply = pcall(latch, i, KEYS[n + 2 + i], verb, holder, lease, tick, to)
    if not well then reply = 'E' .. (type(reply) == 'table' and reply.err or reply) end
  end
  replies[i + 1], at = reply, at + words
end
if last_text then attempt('SET', KEYS[n + 1], last_text) end
return replies
