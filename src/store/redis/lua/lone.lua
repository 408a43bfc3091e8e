-- lone: a batch of one that claims a free key or leaves an owned one with nobody waiting, in the fewest calls. Nearly
-- all of the load of a quiet service is this, so it is asked for in fewer words and answered in one. Whatever is not
-- plain is left to what follows, as it was, and with the words that it expects.
-- KEYS[1]  the record
-- KEYS[2]  the clock
-- KEYS[3]  the queue
-- ARGV[1]  holder: <node>:<claim>:<nonce>:
-- ARGV[2]  of a leave, and the last: <highest> <flags> <lease> <hold>, as below and in open.lua
-- ARGV[2]  of a claim: hold in ms
-- ARGV[3]  not_after: server time in µs after which claims are late; 0 for none
-- ARGV[4]  highest grant number that the sending node saw
-- ARGV[5]  <verb><flags><lease>
-- returns  0 = done; integer = granted, its number, which is the server time in µs too;
--          else {server time in µs, or 0 when it was not asked, reply}
if #ARGV == 2 then
  local value = pcall('GET', KEYS[1])
  if value and not value.err and string.find(value, ARGV[1], 1, true) == 1 and call('EXISTS', KEYS[3]) == 0 then
    local gone = pcall('DEL', KEYS[1])
    if type(gone) == 'table' then return { 0, 'E' .. gone.err } end
    return 0
  end
  local highest, flags, lease, hold = string.match(ARGV[2], '^(%d+) (%a*) (%d+) (%d+)$')
  ARGV = { highest, '0', flags, 'l', lease, hold, ARGV[1] }
elseif #ARGV == 5 then
  local seen = ARGV[4] + 0
  -- Above 2^53 a Lua number plus one is the same number: what follows refuses it.
  if seen < 9007199254740990 and call('EXISTS', KEYS[1], KEYS[3]) == 0 then
    local time = call('TIME')
    local us = time[1] * 1000000 + time[2]
    local number, late = us, ARGV[3] + 0
    if late > 0 and us > late then return { us, 'L' } end
    if seen >= number then number = seen + 1 end
    local text = string.format('%d', number)
    local stored = pcall('SET', KEYS[2], text, 'GET')
    if stored and stored.err then return { us, 'E' .. stored.err } end
    local last = stored and tonumber(stored) or 0
    if stored and not (last > 0 and last < number) then
      -- The server's clock stands or went back, or this is no number at all: put back, and gone into below.
      call('SET', KEYS[2], stored)
    else
      local set = pcall('SET', KEYS[1], ARGV[1] .. text, 'PX', ARGV[2])
      if set.err then return { us, 'E' .. set.err } end
      return number == us and us or { us, number }
    end
  end
  local verb, flags, lease = string.match(ARGV[5], '^(%a)(%a*)(%d+)$')
  ARGV = { ARGV[4], ARGV[3], flags, verb, lease, ARGV[2], ARGV[1] }
end
