-- lone: a batch of one that claims a free key or leaves an owned one with nobody waiting, in the fewest calls. Nearly
-- all of the load of a quiet service is this. Whatever is not plain is left to what follows, untouched.
-- KEYS[1]  the record
-- KEYS[2]  the clock
-- KEYS[3]  the queue
-- ARGV[1]  highest grant number that the sending node saw
-- ARGV[2]  not_after: server time in µs after which claims are late; 0 for none
-- ARGV[4]  verb
-- ARGV[6]  hold in ms
-- ARGV[7]  holder: <node>:<claim>:<nonce>:
-- returns  {server time in µs, or 0 when it was not asked, reply}
if #KEYS == 3 then
  local verb = ARGV[4]
  if verb == 'l' then
    local value = redis.pcall('GET', KEYS[1])
    if value and not value.err and string.find(value, ARGV[7], 1, true) == 1
      and redis.call('EXISTS', KEYS[3]) == 0 then
      local gone = redis.pcall('DEL', KEYS[1])
      return { 0, type(gone) == 'table' and 'E' .. gone.err or 'D' }
    end
  -- Above 2^53 a Lua number plus one is the same number: what follows refuses it.
  elseif (verb == 'w' or verb == 'c') and tonumber(ARGV[1]) < 9007199254740990
    and redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
    local time = redis.call('TIME')
    local us = time[1] * 1000000 + time[2]
    local number, late = us, tonumber(ARGV[2])
    if late > 0 and us > late then return { us, 'L' } end
    local seen = tonumber(ARGV[1])
    if seen >= number then number = seen + 1 end
    local text = string.format('%d', number)
    local stored = redis.pcall('SET', KEYS[2], text, 'GET')
    if stored and stored.err then return { us, 'E' .. stored.err } end
    local last = stored and tonumber(stored) or 0
    if stored and not (last > 0 and last < number) then
      -- The server's clock stands or went back, or this is no number at all: put back, and gone into below.
      redis.call('SET', KEYS[2], stored)
    else
      local set = redis.pcall('SET', KEYS[1], ARGV[7] .. text, 'PX', ARGV[6])
      return { us, set.err and 'E' .. set.err or number }
    end
  end
end
