-- forget: deletes the memory of a job, unless a node has the job, runs it or waits for it.
-- KEYS[1]  record
-- KEYS[2]  queue
-- KEYS[3]  memory
-- returns  1 = deleted; 0 = there was none; B = in use
if redis.call('EXISTS', KEYS[1]) == 1 then return 'B' end
local time = redis.call('TIME')
local ms = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
-- Scores of places are smaller than any time. Entries of dead waiters end before now.
if redis.call('ZRANGEBYSCORE', KEYS[2], ms, '+inf', 'LIMIT', '0', '1')[1] then return 'B' end
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
  local ends = string.find(field, '^w%x+$') and string.match(redis.call('HGET', KEYS[3], field) or '', '^(%d+):')
  if ends and ends + 0 >= ms + 0 then return 'B' end
end
redis.call('DEL', KEYS[2])
return redis.call('DEL', KEYS[3])
