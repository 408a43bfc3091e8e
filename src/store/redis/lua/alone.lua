-- alone: extends or releases an owner's lease with the record alone, while other names of the key are on another server of
-- the cluster. It creates nothing, hands over to no waiter, and neither reads nor writes the clock.
-- For the verb m the key is the memory of an election instead, which lives as long as the leader's lease.
-- KEYS[1]  record   string or zset, see open.lua and weighted.lua; memory, see elect.lua
-- ARGV[1]  verb: r = renew, a = assert a fixed lease, l = leave, m = keep the memory
-- ARGV[2]  holder: <node>:<claim>:<nonce>:
-- ARGV[3]  hold in ms
-- ARGV[4]  of permits <permits>/<capacity>, else empty
-- returns  integer = the holder owns the lease, its number; 0 = released, or the memory is kept if there is one; X = gone;
--          ! = an operator revoked it; N = there was nothing to release; E<error>
local call, key, verb, holder, hold = redis.call, KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if verb == 'm' then
  if call('PTTL', key) < hold + 0 then call('PEXPIRE', key, hold) end
  return 0
end
local nothing = verb == 'l' and 'N' or 'X'
local record = redis.pcall('GET', key)
if not record then return nothing end
if type(record) == 'string' then
  local number = string.find(record, holder, 1, true) == 1 and tonumber(string.sub(record, #holder + 1))
  if string.byte(record) == 33 and string.find(record, holder, 2, true) == 2 then
    if verb ~= 'l' then return '!' end
    call('DEL', key)
    return 0
  end
  if not (number and number > 0 and number < 9007199254740992) then return nothing end
  if verb == 'l' then
    call('DEL', key)
    return 0
  end
  if verb == 'r' then call('PEXPIRE', key, hold) end
  return number
end

local share = 'h' .. holder .. ARGV[4]
local ends = redis.pcall('ZSCORE', key, share)
if type(ends) == 'table' then return 'E' .. ends.err end
local number = tonumber(call('ZSCORE', key, 'n' .. holder) or nil)
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
if not ends or ends + 0 < ms then return nothing end
if not number and verb ~= 'l' then return '!' end
if verb == 'l' then
  -- Read before the removal: a server that the slot leaves refuses every call about a key that is gone.
  local latest = call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '2')
  local last = latest[1] == share and latest[4] or latest[1] ~= share and latest[2]
  if last then call('PEXPIREAT', key, last) end
  call('ZREM', key, share, 'n' .. holder, 'w' .. holder)
  return 0
end
if verb == 'r' then
  if call('PTTL', key) < hold + 0 then call('PEXPIRE', key, hold) end
  call('ZADD', key, 'XX', string.format('%d', ms + hold), share)
end
return number
