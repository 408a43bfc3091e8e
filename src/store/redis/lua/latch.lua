-- latch: all calls about latches, which have no owner and no queue. `t`: set it, once per name and life. `n`: count it down by
-- one, once for each id. `u`: how many are left. `h`: whether it came to zero; if not, the holder's node is told when it does,
-- for a lease. Each life has a generation, numbered by the clock, and a count-down does nothing in one that was set after the
-- call: its `tick` is <since>:<until>:<generation that is meant, or 0>:<1 if it may have been executed before>, of h the
-- generation alone. `to` is the id of the call, of t with <count>:<life in ms>: before it.
-- KEYS[i]           the record     hash, expires with its life
--                     gen      the number of this life
--                     first    the same number. Nodes of earlier versions set a latch at zero again, and left here the first
--                              generation of a row, of which all but the last came to zero
--                     by       the id of the call that set it
--                     left     so many count-downs are left
--                     i<id>    a call that counted in this generation, and how many it left
-- KEYS[n+1+i]       who watches    zset, node = last ms for which it wants to be told; expires with the last of them
-- KEYS[n+1]         the clock
-- ARGV[at+1..at+6]  all words of a request
-- returns           {server time in µs, one reply per request}: Y = set by this call; D<left>; K = not set; M<generation> =
--                   set at about the time of the call, nothing was done; C = the same, and it may have been done before;
--                   Z = the call was for one that is over; H<generation> = not at zero, and it is watched; L = late; E<error>

-- Why a count-down does nothing in the life of that generation; nil where it counts.
local function refused(gen, tick)
  local since, till, of, again = string.match(tick, '^(%d+):(%d+):(%d+):(%d)$')
  if of == gen or of == '0' and gen + 0 <= since + 0 then return end
  if of ~= '0' then return 'Z' end
  if again == '0' then return 'M' .. gen end
  -- One that is ahead of the clock was set before that was set back: then the two do not compare.
  return (gen + 0 <= till + 0 or gen + 0 > us) and 'C' or 'Z'
end

-- What one call does, and its answer.
local function latch(i, queue, verb, holder, lease, tick, to)
  local call, key = redis.call, KEYS[i]
  if records[i] then error({ err = 'WRONGTYPE the record is no latch' }) end
  local known = call('HMGET', key, 'gen', 'first', 'by', 'left')
  local gen, left = known[1], tonumber(known[4] or nil)
  -- What no node can read would spoil the whole batch.
  local is_whole = left and find(known[4], '^%d%d?%d?%d?%d?$') and find(gen or '', '^[1-9]%d*$') and find(known[2] or '', '^[1-9]%d*$')
  if is_whole and gen + 0 >= 9007199254740992 then is_whole = false end
  if not is_whole and call('EXISTS', key) == 1 then error({ err = 'WRONGTYPE the record is no latch' }) end
  if verb == 't' and not gen then
    local number = last + 1
    if number < us then number = us end
    local count, life, id = string.match(to, '^(%d+):(%d+):(.*)$')
    local text = format('%d', number)
    call('HSET', key, 'gen', text, 'first', text, 'by', id, 'left', count)
    call('PEXPIRE', key, life)
    last, last_text = number, text
    return 'Y'
  end
  -- A write that changes nothing. A replica refuses it, whose answers would mean nothing; and what follows a write is not
  -- refused for want of memory.
  call('ZREM', queue, 'b')
  if not gen then return 'K' end
  if verb == 't' and known[3] == string.match(to, '^%d+:%d+:(.*)$') then return 'Y' end
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
        -- Its count decides nothing, and who waits looks for itself.
        redis.pcall('PUBLISH', 'tenure1:n:' .. node, '1 latch ' .. key)
      end
      call('DEL', queue)
    end
    return 'D' .. left
  end
  if tick ~= '0' and tick ~= gen then
    -- Of an earlier life it is not known whether it came to zero, unless a node of an earlier version set the latch again.
    return tick + 0 >= known[2] + 0 and tick + 0 < gen + 0 and 'D0' or 'K'
  end
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
    well, reply = pcall(latch, i, KEYS[n + 1 + i], verb, holder, lease, tick, to)
    if not well then reply = 'E' .. (type(reply) == 'table' and reply.err or reply) end
  end
  replies[i + 1], at = reply, at + words
end
if last_text then attempt('SET', KEYS[n + 1], last_text) end
return replies
