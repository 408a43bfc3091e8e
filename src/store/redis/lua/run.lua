-- run: compares the server's run, and the reign in which the Sentinels confirmed it, with the recorded ones, and begins a
-- recovery if one is another, or if the node has seen a number that the server did not give. It runs when a link opens, so
-- before the first grant of each node.
-- KEYS[1]  run         string, the run that was compared last, never expires
-- KEYS[2]  recovering  string, why the server recovers; exists while the server grants nothing
-- KEYS[3]  longest     string, <longest lease>:<length of a recovery> in ms, as all nodes have it; expires a minute and a recovery after
--                      the last refresh by a node
-- KEYS[4]  clock       string, the last grant number; missing on a quorum, whose masters have a clock for each slot
-- KEYS[5]  epoch       string, the Sentinels' epoch that was compared last; missing if the link is not confirmed
-- ARGV[1]  run of this server: <run id>:<replication id>
-- ARGV[2]  longest as the node has it; empty if the node recovers on evidence only
-- ARGV[3]  length of a recovery in ms, for a server where longest is missing
-- ARGV[4]  highest grant number that the node has seen
-- ARGV[5]  epoch under which the Sentinels confirmed the link
-- returns  {longest as the server has it, or an empty string; the clock; what is left of a recovery in ms, negative without
--          one; why it recovers}; if longest is not the node's, nothing was done; an error, and nothing was done, if the
--          clock is unusable
local call, format = redis.call, string.format
local longest = call('GET', KEYS[3])
if longest and ARGV[2] ~= '' and longest ~= ARGV[2] then return { longest, '0', -1, '' } end
local length = (longest and string.match(longest, ':(%d+)$') or ARGV[3]) + 0
-- As in open.lua: a clock that is no number is neither used nor overwritten, and fences must not restart after it.
local stored = KEYS[4] and redis.pcall('GET', KEYS[4])
local clock = stored and (tonumber(stored) or -1) or 0
if not (clock >= 0 and clock % 1 == 0 and clock < 9007199254740990) then
  if type(stored) == 'table' and not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
  return redis.error_reply('TENURECLOCK ' .. KEYS[4] .. ' is no grant number: delete it')
end
-- PEXPIRE comes first because it needs no memory: the server does not refuse the next write for want of memory.
if ARGV[2] ~= '' and call('PEXPIRE', KEYS[3], format('%d', length + 60000)) == 0 then
  longest = ARGV[2]
  call('SET', KEYS[3], longest, 'PX', format('%d', length + 60000))
end

local why
if call('GET', KEYS[1]) ~= ARGV[1] then
  why = 'run'
elseif KEYS[5] and call('GET', KEYS[5]) ~= ARGV[5] then
  why = 'epoch'
elseif ARGV[4] + 0 > clock then
  why = 'number'
end
if why then
  local left = call('PTTL', KEYS[2])
  -- As above, for a node without longest.
  call('PEXPIRE', KEYS[2], format('%d', left > 0 and left or length))
  if left < length then call('SET', KEYS[2], why, 'PX', format('%d', length)) end
  if KEYS[4] then
    -- Above each number of an earlier reign: the recovery ends after the last grant of a former master.
    local time = call('TIME')
    clock = math.max(clock + 1, ARGV[4] + 1, time[1] * 1000000 + time[2] + 1000 * length)
    call('SET', KEYS[4], format('%d', clock))
  end
  if KEYS[5] then call('SET', KEYS[5], ARGV[5]) end
  -- The last write: if the server refuses one of the others, the next link begins the recovery.
  call('SET', KEYS[1], ARGV[1])
end
local left = call('PTTL', KEYS[2])
-- Only a user writes the key without an end.
if left == -1 then left = length end
return { longest or '', format('%d', clock), left, call('GET', KEYS[2]) or '' }
