-- The script for latches of commit 2a7eee7, without its comments. Only for tests of what runs beside it.
local call, attempt, find, format = redis.call, redis.pcall, string.find, string.format
local words, at = 6, 3
local n = (#ARGV - at) / words
local jobs = #KEYS > 2 * n + 1
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = (us - us % 1000) / 1000
local records = call('MGET', unpack(KEYS, 1, n + 1))
local stored = records[n + 1] or attempt('GET', KEYS[n + 1])
stored = stored and (tonumber(stored) or -1) or 0
local last = ARGV[1] + 0
if stored > last then last = stored end
if not (stored >= 0 and stored % 1 == 0 and last + n < 9007199254740991) then
return redis.error_reply('TENURECLOCK ' .. KEYS[n + 1] .. ' is no grant number: delete it')
end
local last_text
local late = ARGV[2] + 0
late = late > 0 and us > late
local together = find(ARGV[3], 'a', 1, true)
local replies = n > 0 and { us, 0 } or { us }
local first = 1
local queues, head
local function latch(i, queue, verb, holder, lease, tick, to)
local call, key = redis.call, KEYS[i]
if records[i] then error({ err = 'WRONGTYPE the record is no latch' }) end
local known = call('HMGET', key, 'gen', 'first', 'by', 'left')
local gen, left = known[1], tonumber(known[4] or nil)
local is_whole = left and find(known[4], '^%d%d?%d?%d?%d?$') and find(gen or '', '^[1-9]%d*$') and find(known[2] or '', '^[1-9]%d*$')
if is_whole and gen + 0 >= 9007199254740992 then is_whole = false end
if not is_whole and call('EXISTS', key) == 1 then error({ err = 'WRONGTYPE the record is no latch' }) end
if verb ~= 't' then
call('ZREM', queue, 'b')
if not gen then return 'K' end
if verb == 'u' then return 'D' .. left end
end
local function refused()
local since, till, of, again = string.match(tick, '^(%d+):(%d+):(%d+):(%d)$')
if of == gen or of == '0' and gen + 0 <= since + 0 then return end
if of ~= '0' then return 'Z' end
if again == '0' then return 'M' .. gen end
return (gen + 0 <= till + 0 or gen + 0 > us) and 'C' or 'Z'
end
if verb == 't' then
local count, life, id = string.match(to, '^(%d+):(%d+):(.*)$')
if gen then
local done = string.sub(tick, -1) == '1' and refused()
local why = known[3] == id and 'Y' or done and 'C' or left > 0 and 'D' .. left or refused()
if why then
call('ZREM', queue, 'b')
return why
end
end
local number = last + 1
if number < us then number = us end
local text = format('%d', number)
call('HSET', key, 'gen', text)
call('DEL', key)
call('HSET', key, 'gen', text, 'first', known[2] or text, 'by', id, 'left', count)
call('PEXPIRE', key, life)
last, last_text = number, text
return 'Y'
end
if verb == 'n' then
local before = call('HGET', key, 'i' .. to)
if before then return 'D' .. before end
if left == 0 then return 'D0' end
local why = refused()
if why then return why end
left = format('%d', left - 1)
call('HSET', key, 'left', left, 'i' .. to, left)
if left == '0' then
for _, node in ipairs(call('ZRANGEBYSCORE', queue, format('%d', ms), '+inf')) do
redis.pcall('PUBLISH', 'tenure1:n:' .. node, '1 latch ' .. key)
end
call('DEL', queue)
end
return 'D' .. left
end
if tick ~= '0' then
if tick + 0 > gen + 0 or tick + 0 < known[2] + 0 then return 'K' end
if tick + 0 < gen + 0 then return 'D0' end
end
if left == 0 then return 'D0' end
for _, node in ipairs(call('ZRANGEBYSCORE', queue, '0', format('(%d', ms))) do call('ZREM', queue, node) end
local rest = call('PTTL', queue)
call('ZADD', queue, format('%d', ms + lease), string.match(holder, '^%x+'))
call('PEXPIRE', queue, rest > lease + 0 and format('%d', rest) or lease)
return 'H' .. gen
end
for i = 1, n do
local verb, holder, lease, hold, tick, to = unpack(ARGV, at + 1, at + 6)
local reply = 'L'
if not (late and verb == 't') then
local well
well, reply = pcall(latch, i, KEYS[n + 1 + i], verb, holder, lease, tick, to)
if not well then reply = 'E' .. (type(reply) == 'table' and reply.err or reply) end
end
replies[i + 1], at = reply, at + words
end
if last_text then attempt('SET', KEYS[n + 1], last_text) end
return replies
