-- revoke: takes a lease from its holder for an operator, or asks the holder to give it back. A revoked lease keeps its end:
-- its record gets a ! before its value, or its share loses its number. It cannot be renewed, passed on or written under.
-- KEYS[1]  record      string or zset, see open.lua and weighted.lua
-- KEYS[2]  recovering  string, exists while the server recovers
-- KEYS[3]  memory of an election, see elect.lua
-- KEYS[4]  masters     string, exists on a master of a quorum; missing on a cluster
-- ARGV[1]  act: a = ask, r = revoke, h = revoke as the first half of a hand-over
-- ARGV[2]  kind
-- ARGV[3]  grant number; empty for the record of a foreign client, and for a share that is revoked already
-- ARGV[4]  of permits <permits>/<capacity>; of a foreign record 12 digits of the SHA-1 of its first 512 bytes; of a share that is
--          revoked already <node>:<claim>: of its holder; else empty
-- ARGV[5]  1 = the holder's node gets a push
-- ARGV[6]  words of the push before the record: of ask <grace ms> <by> <why>, else the mode; and a space
-- returns  {time in µs, reply}: the holder, <node>:<claim>:<nonce>:, empty for a foreign client; X = the lease is over, or is
--          another one; F = the record has no end; R<ms> = the server recovers for so many ms
--          M = the server is a master of a quorum
local call, find, sub, match = redis.call, string.find, string.sub, string.match
local key, act, kind, number, which = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = (us - us % 1000) / 1000

if KEYS[4] and call('EXISTS', KEYS[4]) == 1 then return { us, 'M' } end
local recovering = act == 'h' and call('PTTL', KEYS[2]) or -2
-- Only a user writes the key without an end.
if recovering ~= -2 then return { us, 'R' .. (recovering > 0 and recovering or 0) } end

local record = redis.pcall('GET', key)
if type(record) == 'table' and not find(record.err, 'WRONGTYPE', 1, true) then return record end
local left = call('PTTL', key)
local holder, led
if type(record) == 'string' then
  -- A record that is revoked already is found, too.
  local from = string.byte(record) == 33 and 2 or 1
  -- The 0 is the mark of a lease that may be kept, see open.lua.
  local owner, node_ends, of = match(record, '^(%x+():%d+:%x+:)0?(%d+)$', from)
  if node_ends ~= from + 32 then owner, of = nil, nil end
  if number == '' then
    if owner or sub(redis.sha1hex(sub(record, from, from + 511)), 1, 12) ~= which then return { us, 'X' } end
  elseif of ~= number then
    return { us, 'X' }
  end
  holder, led = owner or '', owner and from == 1 and kind == 'election'
  if left < 0 and act ~= 'h' then return { us, 'F' } end
  if act == 'h' and not owner then
    call('DEL', key)
  elseif act ~= 'a' and from == 1 then
    revoke_record(key, record)
  end
elseif record then
  -- The record is not a string: claims share it.
  local ends
  if number ~= '' then
    local found = redis.pcall('ZRANGEBYSCORE', key, number, number)
    holder = not found.err and found[1] and match(found[1], '^n(%x+:%d+:%x+:)$')
    ends = holder and call('ZSCORE', key, 'h' .. holder .. which)
  else
    -- A revoked share has no number. Operators see the first 50 shares.
    local found = redis.pcall('ZRANGE', key, '0', '49', 'WITHSCORES')
    for at = 1, found.err and 0 or #found, 2 do
      local of = match(found[at], '^h(%x+:%d+:%x+:)')
      if of and find(of, which, 1, true) == 1 and not call('ZSCORE', key, 'n' .. of) then holder, ends = of, found[at + 1] end
    end
  end
  if not ends or ends + 0 < ms then return { us, 'X' } end
  if act ~= 'a' then call('ZREM', key, 'n' .. holder) end
else
  return { us, 'X' }
end

if holder ~= '' and ARGV[5] == '1' then
  local node, claim, nonce = match(holder, '^(%x+):(%d+):(%x+):$')
  local push = act == 'a' and '1 asked ' or '1 revoked '
  redis.pcall('PUBLISH', 'tenure1:n:' .. node, push .. kind .. ' ' .. claim .. ' ' .. nonce .. ' ' .. ARGV[6] .. key)
end

-- The observers of an election learn that it has no leader. The values of waiting candidates stay.
-- The lease is revoked already, so an error here must not hide that.
local function tell()
  for _, field in ipairs(call('HKEYS', KEYS[3])) do
    if string.byte(field) == 119 then
      if (tonumber(call('HGET', KEYS[3], field)) or 0) >= ms then
        redis.pcall('PUBLISH', 'tenure1:n:' .. sub(field, 2), '1 changed election ' .. key)
      end
      call('HDEL', KEYS[3], field)
    end
  end
  call('HDEL', KEYS[3], 'number', 'version', 'seq', 'said')
end
if act ~= 'a' and led then pcall(tell) end
return { us, holder }
