-- run: compares the server's run with the recorded one, and begins a recovery if it is another. It runs when a link
-- opens, so before the first grant of each node.
-- KEYS[1]  run         string, the run that was compared last, never expires
-- KEYS[2]  recovering  string, exists while the server grants nothing
-- KEYS[3]  longest     string, <longest lease>:<length of a recovery> in ms, as all nodes have it; never expires
-- ARGV[1]  run of this server: <run id>:<replication id>
-- ARGV[2]  longest as the node has it; empty if the node recovers on evidence only
-- ARGV[3]  length of a recovery in ms, for a server where longest is missing
-- returns  longest as the server has it, nil if it is missing; if it is not the node's, nothing was done
local call = redis.call
local longest = call('GET', KEYS[3])
if longest and ARGV[2] ~= '' and longest ~= ARGV[2] then return longest end
local length = longest and string.match(longest, ':(%d+)$') or ARGV[3]
local is_other = call('GET', KEYS[1]) ~= ARGV[1]
local is_first = not longest and ARGV[2] ~= ''
if is_other or is_first then
  local left = call('PTTL', KEYS[2])
  -- PEXPIRE comes first because it needs no memory: the server does not refuse the next write for want of memory.
  call('PEXPIRE', KEYS[2], left > 0 and left or length)
  if is_other and left < length + 0 then call('SET', KEYS[2], 1, 'PX', length) end
end
if is_first then
  longest = ARGV[2]
  call('SET', KEYS[3], longest)
end
if is_other then
  -- The last write: if the server refuses one of the others, the next link begins the recovery.
  call('SET', KEYS[1], ARGV[1])
end
return longest
