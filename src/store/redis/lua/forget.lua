-- forget: what is known of a job that is no more, unless somebody runs it or stands by for it.
-- KEYS[1]  the record
-- KEYS[2]  the queue
-- KEYS[3]  the memory
-- returns  1 = forgotten; 0 = nothing was known; B = in use
if redis.call('EXISTS', KEYS[1]) == 1 then return 'B' end
local time = redis.call('TIME')
local ms = string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000))
-- Places are below any time, and the dead before this one.
if redis.call('ZRANGEBYSCORE', KEYS[2], ms, '+inf', 'LIMIT', '0', '1')[1] then return 'B' end
redis.call('DEL', KEYS[2])
return redis.call('DEL', KEYS[3])
