-- lone: one share of a key that nobody has or waits for, and one that is given back while nobody waits: as plain.lua, before
-- any closure is made.
-- KEYS[1]     the record, see share.lua and permits.lua
-- KEYS[2]     the clock
-- KEYS[3]     the queue
-- ARGV[at+1]  verb
-- ARGV[at+2]  holder
-- ARGV[at+4]  hold
-- ARGV[at+5]  tick
-- returns     {server time in µs, integer = granted, its number; 0 = done; E<error>}
if n == 1 and first == 1 and not (jobs or together or records[1]) and ARGV[at + 5] ~= '0' then
  local verb, holder, tick = ARGV[at + 1], ARGV[at + 2], ARGV[at + 5]
  local key, weight = KEYS[1], string.match(tick, '^(%d+)/')
  local share, reply = 'h' .. holder .. (weight and tick or ''), nil
  if verb == 'l' then
    queues = call('EXISTS', KEYS[3])
    local ends = queues == 0 and attempt('ZSCORE', key, share)
    if type(ends) == 'string' and ends + 0 >= ms then
      reply = attempt('ZREM', key, share, 'n' .. holder, 'w' .. holder)
      -- What is left lasts as long as the last of them.
      local rest = call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '1')[2]
      if rest then call('PEXPIREAT', key, rest) end
      reply = type(reply) == 'table' and reply or 0
    end
  elseif (verb == 'w' or verb == 'c') and not late and call('EXISTS', key, KEYS[3]) == 0 then
    local number, hold = last + 1, ARGV[at + 4]
    if number < us then number = us end
    local text = format('%d', number)
    reply = attempt('ZADD', key, format('%d', ms + hold), share, text, 'n' .. holder)
    if type(reply) ~= 'table' then
      if weight and weight ~= '1' then call('ZADD', key, format('%d', 8000000000000000 + weight), 'w' .. holder) end
      call('PEXPIRE', key, hold)
      attempt('SET', KEYS[2], text)
      reply = number
    end
  end
  if reply then
    replies[2] = type(reply) == 'table' and 'E' .. reply.err or reply
    return replies
  end
end
