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
if ARGV[2] ~= '' then
  if longest and longest ~= ARGV[2] then return longest end
  if not longest then
    longest = ARGV[2]
    call('SET', KEYS[3], longest)
  end
end
if call('GET', KEYS[1]) ~= ARGV[1] then
  local length = longest and string.match(longest, ':(%d+)$') or ARGV[3]
  if call('PTTL', KEYS[2]) < length + 0 then call('SET', KEYS[2], 1, 'PX', length) end
  -- The last write: if the server refuses one of the others, the next link begins the recovery.
  call('SET', KEYS[1], ARGV[1])
end
return longest
