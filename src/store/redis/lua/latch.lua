-- latch: all that is asked of latches, which have no owner and no queue. `t`: set it, if it is not set or at zero. `n`: count
-- it down by one, once for each id. `u`: how many are left. `h`: whether it came to zero; if not, the holder's node is told
-- when it does, for a lease. Each set makes a generation, numbered by the clock, and nothing is done in one that was set
-- after the call: `tick` is <since>:<until>:<generation that is meant, or 0>:<1 if it may have been executed before>, of h
-- the generation alone. `to` is the id of the call, of t with <count>:<life in ms>: before it.
-- KEYS[i]           the record     hash, expires with its life
--                     gen      the number of this generation
--                     first    that of the first of those that followed each other, of which all but the last came to zero
--                     by       the id of the call that set it
--                     left     so many count-downs are left
--                     i<id>    a call that counted in this generation, and how many it left
-- KEYS[n+1+i]       who watches    zset, node = last ms for which it wants to be told; expires with the last of them
-- KEYS[n+1]         the clock
-- ARGV[at+1..at+6]  all words of a request
-- returns           {server time in µs, one reply per request}: Y = set by this call; D<left>; K = not set; M<generation> =
--                   set at about the time of the call, nothing was done; C = the same, and it may have been done before;
--                   Z = the call was for one that is over; H<generation> = not at zero, and it is watched; L = late; E<error>
local function latch(i, queue, verb, holder, lease, tick, to)
  local call, key = redis.call, KEYS[i]
  if records[i] then error({ err = 'WRONGTYPE the record is no latch' }) end
  local known = call('HMGET', key, 'gen', 'first', 'by', 'left')
  local gen, left = known[1], tonumber(known[4] or nil)
  -- What no node can read would spoil the whole batch.
  local is_whole = left and find(known[4], '^%d%d?%d?%d?%d?$') and find(gen or '', '^[1-9]%d*$') and find(known[2] or '', '^[1-9]%d*$')
  if is_whole and gen + 0 >= 9007199254740992 then is_whole = false end
  if not is_whole and call('EXISTS', key) == 1 then error({ err = 'WRONGTYPE the record is no latch' }) end
  if verb ~= 't' then
    -- A write that changes nothing. A replica refuses it, whose answers would mean nothing; and what follows a write is not
    -- refused for want of memory.
    call('ZREM', queue, 'b')
    if not gen then return 'K' end
    if verb == 'u' then return 'D' .. left end
  end

  -- Why nothing is done in the present generation; nil where it is.
  local function refused()
    local since, till, of, again = string.match(tick, '^(%d+):(%d+):(%d+):(%d)$')
    if of == gen or of == '0' and gen + 0 <= since + 0 then return end
    if of ~= '0' then return 'Z' end
    if again == '0' then return 'M' .. gen end
    -- One that is ahead of the clock was set before that was set back: then the two do not compare.
    return (gen + 0 <= till + 0 or gen + 0 > us) and 'C' or 'Z'
  end

  if verb == 't' then
    local count, life, id = string.match(to, '^(%d+):(%d+):(.*)$')
    if gen then
      -- It may have been done, have come to zero, and have been set again by another.
      local done = string.sub(tick, -1) == '1' and refused()
      local why = known[3] == id and 'Y' or done and 'C' or left > 0 and 'D' .. left or refused()
      if why then
        call('ZREM', queue, 'b')
        return why
      end
    end
    local number = last + 1
    if number < us then number = us end
    local text = format('%d', number)
    -- First what may be refused for want of memory, then what must not be left of the generation before.
    call('HSET', key, 'gen', text)
    call('DEL', key)
    call('HSET', key, 'gen', text, 'first', known[2] or text, 'by', id, 'left', count)
    call('PEXPIRE', key, life)
    last, last_text = number, text
    return 'Y'
  end
  if verb == 'n' then
    local before = call('HGET', key, 'i' .. to)
    if before then return 'D' .. before end
    if left == 0 then return 'D0' end
    local why = refused()
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
  if tick ~= '0' then
    -- What is not of this row ended before it came to zero, for all that is known.
    if tick + 0 > gen + 0 or tick + 0 < known[2] + 0 then return 'K' end
    if tick + 0 < gen + 0 then return 'D0' end
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
