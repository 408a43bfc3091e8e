-- write: executes the caller's code if each of its leases is current, otherwise nothing. The caller's code stands before
-- this file, as the function `body` with its own KEYS and ARGV; or `why` says why it is not a function. `n` is the
-- number of leases. Of the names of this crate, the script reads the records only, and changes none.
-- KEYS[i]           record of a lease
-- KEYS[n+1]         queue of the first lease's key
-- KEYS[n+1+i]       keys of the caller
-- ARGV[3*i-2]       holder: <node>:<claim>:<nonce>:
-- ARGV[3*i-1]       grant number
-- ARGV[3*i]         <permits>/<capacity> for a semaphore, else empty
-- ARGV[3*n+i]       arguments of the caller
-- returns           {1, result of the body}; {2, error of the body}; {0, i, …} = these leases are not current;
--                   READONLY = the server is not a master, and nothing was done
local function is_current(i)
  local record, holder, grant = redis.pcall('GET', KEYS[i]), ARGV[3 * i - 2], ARGV[3 * i - 1]
  -- The 0 is the mark of a lease that may be kept, see open.lua.
  if type(record) ~= 'table' then return record == holder .. grant or record == holder .. '0' .. grant end
  -- The record is not a string: claims share it.
  local ends = redis.pcall('ZSCORE', KEYS[i], 'h' .. holder .. ARGV[3 * i])
  if type(ends) ~= 'string' then return false end
  local number, time = redis.call('ZSCORE', KEYS[i], 'n' .. holder), redis.call('TIME')
  return tonumber(ends) >= time[1] * 1000 + math.floor(time[2] / 1000) and tonumber(number or nil) == tonumber(grant)
end

local over
for i = 1, n do
  if not is_current(i) then
    over = over or { 0 }
    over[#over + 1] = i
  end
end
local READONLY = redis.error_reply('READONLY no master')
-- A replica refuses this write, which changes nothing. What a replica says about a lease means nothing.
local function is_replica()
  local wrote = redis.pcall('ZREM', KEYS[n + 1], 'b')
  return type(wrote) == 'table' and string.find(wrote.err, 'READONLY', 1, true)
end
if over then return is_replica() and READONLY or over end
if not body then return { 2, why } end
-- A client cannot read an error or a status that is not ASCII, or lists nested without end. They would end the
-- connection.
local function is_readable(reply, depth)
  if type(reply) ~= 'table' then return true end
  local said = reply.err or reply.ok
  if said then return type(said) == 'string' and not string.find(said, '[\128-\255]') end
  for _, part in ipairs(depth > 0 and reply or {}) do
    if not is_readable(part, depth - 1) then return false end
  end
  return depth > 0
end
local keys, args = {}, {}
for i = 1, #KEYS - n - 1 do keys[i] = KEYS[n + 1 + i] end
for i = 1, #ARGV - 3 * n do args[i] = ARGV[3 * n + i] end
local well, reply = pcall(body, keys, args)
local failed = type(reply) == 'table' and reply.err or not well and reply
if failed then
  failed = tostring(failed)
  if string.find(failed, 'READONLY', 1, true) and is_replica() then return READONLY end
  return { 2, failed }
end
if is_readable(reply, 32) then return { 1, reply } end
return { 2, 'it returned what no client can read: an error or a status that is no ASCII, or more than 32 lists in one another' }
