-- The script for locks of commit 2a7eee7, without its comments. Only for tests of what runs beside it.
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
if together then queues = call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1)) end
if not jobs and (not together or not late and queues == 0 and call('EXISTS', unpack(KEYS, 1, n)) == 0) then
local leaving, leaves = nil, 0
for i = 1, n do
local verb, holder, record = ARGV[at + 1], ARGV[at + 2], records[i]
local leave = verb == 'l' and record and find(record, holder, 1, true) == 1
if not leave and (record or late or verb ~= 'w' and verb ~= 'c' or ARGV[at + 5] ~= '0') then break end
if leave and n == 1 then
head = attempt('ZRANGE', KEYS[n + 1 + i], '0', '0')
queues = head.err and 1 or #head
end
queues = queues or call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1))
if queues > 0 then break end
local reply = 0
if leave then
leaves = leaves + 1
if leaving then leaving[leaves] = KEYS[i] else leaving = { KEYS[i] } end
else
local number = last + 1
if number < us then number = us end
local text = format('%d', number)
local set = attempt('SET', KEYS[i], holder .. text, 'NX', 'PX', ARGV[at + 4])
if not set then break end
if set.err then
reply = 'E' .. set.err
else
last, last_text, reply = number, text, number
end
end
replies[i + 1], first, at = reply, i + 1, at + words
end
if leaves > 0 then
local gone = attempt('DEL', unpack(leaving))
if type(gone) == 'table' then
local place = 1
for i = 1, first - 1 do
if KEYS[i] == leaving[place] then
replies[i + 1], place = 'E' .. gone.err, place + 1
end
end
end
end
if first > n then
if last_text then attempt('SET', KEYS[n + 1], last_text) end
return replies
end
end
if n == 1 and first == 1 and not (jobs or together or records[1]) and ARGV[at + 5] ~= '0' then
local verb, holder, tick = ARGV[at + 1], ARGV[at + 2], ARGV[at + 5]
local key, weight = KEYS[1], string.match(tick, '^(%d+)/')
local share, reply = 'h' .. holder .. (weight and tick or ''), nil
if verb == 'l' then
queues = call('EXISTS', KEYS[3])
local ends = queues == 0 and attempt('ZSCORE', key, share)
if type(ends) == 'string' and ends + 0 >= ms then
reply = attempt('ZREM', key, share, 'n' .. holder, 'w' .. holder)
local rest = call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '1')[2]
if rest then call('PEXPIREAT', key, rest) end
reply = type(reply) == 'table' and reply or 0
end
elseif (verb == 'w' or verb == 'c') and not late and call('EXISTS', key, KEYS[3]) == 0 then
local number, hold = last + 1, ARGV[at + 4]
if number < us then number = us end
local text = format('%d', number)
reply = attempt('ZADD', key, format('%d', ms + hold), share, text, 'n' .. holder)
if type(reply) ~= 'table' then
if weight and weight ~= '1' then call('ZADD', key, format('%d', 8000000000000000 + weight), 'w' .. holder) end
call('PEXPIRE', key, hold)
attempt('SET', KEYS[2], text)
reply = number
end
end
if reply then
replies[2] = type(reply) == 'table' and 'E' .. reply.err or reply
return replies
end
end
local claims, waits, renews, leaves, finishes, yields, passes, extends, asks, frees
for i = first, n do
local word = at + (i - first) * words
local verb = ARGV[word + 1]
if verb == 'w' then
claims, waits = true, true
elseif verb == 'c' then
claims = true
elseif verb == 'r' then
renews = true
elseif verb == 'y' then
yields, frees = true, true
elseif verb == 'p' then
passes, frees = true, true
elseif verb == 'e' then
extends = true
elseif verb == 'l' or verb == 'f' then
leaves, frees, finishes = true, true, finishes or verb == 'f'
else
asks = true
end
frees = frees or not records[i] or verb == 'r' and not jobs and ARGV[word + 5] ~= '0'
end
local shared = {}
local look, fits, join, part, ends
local push = '1 lock '
if frees then
function look(i)
if shared[i] == nil then
local call, key, shares = redis.call, KEYS[i]
while true do
shares = call('ZRANGE', key, '0', '0', 'WITHSCORES')
if not shares[1] then break end
if not string.match(shares[1], '^h%x+:%d+:%x+:$') then error({ err = 'WRONGTYPE the record is no lock' }) end
if shares[2] + 0 >= ms then break end
call('ZREM', key, shares[1], 'n' .. string.sub(shares[1], 2))
end
shared[i] = shares[1] ~= nil
end
return shared[i]
end
function fits(i, tick)
return tick == '1'
end
function join(i, holder, hold, text)
local call, key, expires, left = redis.call, KEYS[i], format('%d', ms + hold), -1
if shared[i] then left = call('PTTL', key) end
if text then
if records[i] then call('DEL', key) end
call('ZADD', key, expires, 'h' .. holder, text, 'n' .. holder)
records[i], shared[i] = false, true
end
call('PEXPIRE', key, left > hold + 0 and format('%d', left) or hold)
if not text then call('ZADD', key, 'XX', expires, 'h' .. holder) end
end
function ends(i, holder, tick)
return tick == '1' and redis.call('ZSCORE', KEYS[i], 'h' .. holder)
end
function part(i, holder)
local key = KEYS[i]
redis.call('ZREM', key, 'h' .. holder, 'n' .. holder)
local last = redis.call('ZREVRANGEBYSCORE', key, '100000000000000', '0', 'WITHSCORES', 'LIMIT', '0', '1')[2]
if last then redis.call('PEXPIREAT', key, last) end
shared[i] = nil
end
end
local apart
local gap = not jobs and tonumber(string.match(ARGV[3], '%d+')) or nil
local leads, elected
local left, grant
if claims or renews or yields then
function left(i, letter)
local ttl, node = redis.call('PTTL', KEYS[i]), letter == 'Q' and string.match(records[i] or '', '^(%x+):%d+:%x+:%d+$') or ''
if letter == 'Q' and (gap or not shared[i] and #node ~= 32) then letter = 'P' end
return letter .. (ttl < 0 and '' or format('%d', ttl)) .. ':' .. node
end
end
if frees then
function grant(i, job, holder, hold, tick, sure)
if job then job:count(holder, tick) end
local number = last + 1
if number < us then number = us end
local text = format('%d', number)
local key, record = KEYS[i], holder .. text
if not job and tick ~= '0' and tick ~= '' then
if not records[i] and look(i) and not (sure or fits(i, tick)) then return end
join(i, holder, hold, text, tick)
elseif records[i] then
redis.call('SET', key, record, 'PX', hold)
elseif not redis.call('SET', key, record, 'NX', 'PX', hold) and (look(i) or not redis.call('SET', key, record, 'NX', 'PX', hold)) then
return
end
last, last_text = number, text
if not shared[i] then records[i] = record end
return number, text
end
end
local touch, enqueue, probes, rests, hand_over
local gives
if renews then
function touch(queue, job, entry, lease, tick)
local dies = redis.call('ZSCORE', queue, 'b' .. entry)
if not dies or dies + 0 < ms or job and not job:may_wait(tick) then
redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
return false
end
local left = redis.call('PTTL', queue)
redis.call('PEXPIRE', queue, left > lease + 0 and format('%d', left) or lease)
redis.call('ZADD', queue, 'XX', format('%d', ms + lease), 'b' .. entry)
return true
end
end
if waits or yields then
function enqueue(queue, entry, lease)
local call, place = redis.call, '1'
local left = call('PTTL', queue)
while left ~= -2 do
local found = call('ZREVRANGEBYSCORE', queue, format('(%d', ms), '0', 'WITHSCORES', 'LIMIT', '0', '1')
local member = found[1]
if not member or string.byte(member) == 97 then
place = member and format('%d', found[2] + 1) or place
break
end
call('ZREM', queue, 'a' .. string.sub(member, 2), member)
end
call('ZADD', queue, 'NX', place, 'a' .. entry, format('%d', ms + lease), 'b' .. entry)
call('PEXPIRE', queue, left > lease + 0 and format('%d', left) or lease)
end
end
if frees then
probes = find(ARGV[3], 'p', 1, true)
function rests(i, queue)
local known = redis.call('ZSCORE', queue, 'c')
local free = known and known - 600 * gap
if free and (known + 0 < ms or free > ms + gap) then free = false end
if free and ms < free then return true end
if not (records[i] or gives) or free and ms - free < 8 * gap then return false end
local ttl, lasts = redis.call('PTTL', queue), 601 * gap
local set = redis.pcall('ZADD', queue, format('%d', ms + (free and lasts or lasts - gap)), 'c')
if type(set) == 'table' then return false end
redis.call('PEXPIRE', queue, format('%d', ttl > lasts and ttl or lasts))
return free
end
local function nobody(i, queue, goes_on)
if gap and not goes_on and (records[i] or not look(i)) then redis.call('ZREM', queue, 'c') end
return false
end
function hand_over(i, queue, job, caller, goes_on)
local call, from, to, own, found = redis.call, '0', '0', nil, head
head = nil
while true do
found = found or call('ZRANGE', queue, from, to)
local out = 0
for j = 1, #found do
if string.byte(found[j]) ~= 97 then return nobody(i, queue, goes_on), own end
local entry = string.sub(found[j], 2)
local holder, node, claim, nonce, lease, hold, tick = string.match(entry, '^((%x+):(%d+):(%x+):)(%d+):(%d+):?([%d/]*)$')
if holder then
local channel = 'tenure1:n:' .. node
local dies = (call('ZSCORE', queue, 'b' .. entry) or 0) + 0
local over = dies < ms or job and not job:may_wait(tick + 0)
local is_next = not over and holder == caller
if not over and not is_next then
is_next = ms + math.floor(lease / 3) <= dies
if is_next and probes then
local heard = redis.pcall('PUBSUB', 'NUMSUB', channel)
is_next = heard.err or heard[2] > 0
end
end
local shares = (over or is_next) and not records[i] and look(i)
if is_next then
if shares and not fits(i, tick) then return false, own, nil, true end
if gap and not shares and rests(i, queue) then return false, nil, true end
end
if over or is_next then
call('ZREM', queue, found[j], 'b' .. entry)
out = out + 1
end
if is_next then
local number, text = grant(i, job, holder, hold, job and tick + 0 or tick)
if holder == caller then
own = number
else
local kind, attempt = push, ' '
if job then kind, attempt = '1 job ', ' ' .. job.attempt .. ' ' end
redis.pcall('PUBLISH', channel, kind .. claim .. ' ' .. nonce .. ' ' .. text .. ' ' .. lease .. attempt .. KEYS[i])
end
if not shared[i] then return true, own end
end
end
end
if #found <= to - from then return nobody(i, queue, goes_on), own end
from = to + 1 - out
to, found = from + 31, nil
end
end
end
local claim
if claims then
function claim(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
local key, waits = KEYS[i], verb == 'w'
if number then
if records[i] then redis.call('PEXPIRE', key, hold) else join(i, holder, hold, nil, tick) end
return number
end
local _, own, rest, blocked
if not records[i] and queues ~= 0 then
_, own, rest, blocked = hand_over(i, queue, job, holder)
if own then return own end
end
local refused = job and job:judge(tick, to)
if refused then return refused end
if not (records[i] or rest or blocked) then
local open = job and job.mark ~= tick and job.attempt > 0 and not job.done and job.mark
local number = grant(i, job, holder, hold, tick)
if number then return open and format('V%d:%d', number, open) or number end
end
if job and tick > job.mark and to ~= '' then
if to ~= 'q' or not waits then return left(i, 'B') end
if tick - 1 > job.skipped then
redis.call('HSET', job.key, 'skipped', format('%d', tick - 1))
job.skipped = tick - 1
end
elseif job and tick > job.mark then
redis.call('HSET', job.key, 'skipped', format('%d', tick))
return left(i, 'B')
end
if not waits then return left(i, 'B') end
enqueue(queue, entry, lease)
return left(i, 'Q')
end
end
local renew
if renews then
function renew(i, queue, number, job, holder, entry, lease, hold, tick)
if number then
if not records[i] then
join(i, holder, hold, nil, tick)
elseif job or tick == '0' then
redis.call('PEXPIRE', KEYS[i], hold)
else
join(i, holder, hold, format('%d', number))
hand_over(i, queue)
end
return number
end
local waits = touch(queue, job, entry, lease, tick)
if not records[i] and queues ~= 0 then
local _, own = hand_over(i, queue, job, holder)
if own then return own end
end
if waits then return left(i, 'Q') end
return job and not job:is_open(tick) and job:over(tick) or 'X'
end
end
local leave
if leaves then
function leave(i, queue, number, job, holder, entry, lease, hold, tick)
local record = records[i]
if number and not record then
part(i, holder, tick)
gives = true
if queues ~= 0 then pcall(hand_over, i, queue) end
return 0
end
if number then
if queues ~= 0 then pcall(hand_over, i, queue, job) end
if records[i] == record then
redis.call('DEL', KEYS[i])
records[i] = false
end
return 0
end
local waited = redis.call('ZREM', queue, 'a' .. entry, 'b' .. entry)
if not record then pcall(hand_over, i, queue, job) end
return waited > 0 and 0 or 'N'
end
end
local yield
if yields then
function yield(i, queue, number, job, holder, entry, lease, hold, tick, to)
if not (number or records[i]) and queues ~= 0 then
local _, own = hand_over(i, queue, job, holder)
number = own
end
if not number then
redis.call('ZREM', queue, 'b')
return 'X'
end
if not records[i] then
part(i, holder)
gives = true
end
local given, _, rest, blocked = hand_over(i, queue, job, nil, true)
local shares = not records[i] and look(i)
rest = rest or not (given or blocked or shares) and gap and rests(i, queue)
if not given then
if records[i] then redis.call('DEL', KEYS[i]) end
records[i] = false
local own = not (rest or blocked) and grant(i, job, to, hold, tick)
if own then return own end
end
enqueue(queue, to .. string.sub(entry, #holder + 1), lease)
return left(i, 'Q')
end
end
local pass
if passes then
function pass(i, queue, number, job, holder, entry, lease, hold, tick, to)
local call, key, record = redis.call, KEYS[i], records[i]
local old = record and find(record, to, 1, true) == 1 and tonumber(string.sub(record, #to + 1))
if old then
call('PEXPIRE', key, hold)
return old
end
old = shared[i] and tonumber(call('ZSCORE', key, 'n' .. to) or nil)
if old then
join(i, to, hold, nil, tick)
return old
end
call('ZREM', queue, 'b')
if not number or not record and not ends(i, holder, tick) then return 'X' end
if not record then part(i, holder, tick) end
number = grant(i, nil, to, hold, tick, true)
if record and tick ~= '0' then pcall(hand_over, i, queue) end
return number
end
end
local extend
if extends then
function extend(i, queue, number, job, holder, entry, lease, hold, tick)
local call, key = redis.call, KEYS[i]
if not records[i] and queues ~= 0 then hand_over(i, queue) end
local known = number and not records[i] and ends(i, holder, tick)
if not number or not (records[i] or known) then
call('ZREM', queue, 'b')
return 'X'
end
if not records[i] then
if known + 0 < ms + hold then join(i, holder, hold, nil, tick) end
else
local left = call('PTTL', key)
if left >= 0 and left < hold + 0 then call('PEXPIRE', key, hold) end
end
return 0
end
end
if together and not late then
local free, all = {}, true
for i = first, n do
local word = at + (i - first) * words
local holder = ARGV[word + 2]
local owns = records[i] and find(records[i], holder, 1, true) == 1
if not records[i] and pcall(look, i) then
owns = shared[i] and call('ZSCORE', KEYS[i], 'n' .. holder)
local well, given, own, rest, blocked = true, owns, nil, false
if queues ~= 0 and not owns then
well, given, own, rest, blocked = pcall(hand_over, i, KEYS[n + 1 + i], nil, holder)
owns = well and own
end
free[i] = well and not (given or owns or rest or blocked or shared[i] and not fits(i, ARGV[word + 5]))
end
all = all and (free[i] or owns)
end
apart = not all and free
end
for i = first, n do
local verb, holder, lease, hold, tick, to = unpack(ARGV, at + 1, at + 6)
local act, entry = claim, holder .. lease .. ':' .. hold
if verb == 'l' then
act = leave
elseif verb == 'r' then
act = renew
elseif verb == 'f' then
act = finish
elseif verb == 'y' then
act = yield
elseif verb == 'p' then
act = pass
elseif verb == 'e' then
act = extend
elseif verb ~= 'w' and verb ~= 'c' then
act = ask
end
local job, record, reply = nil, records[i], nil
local led = leads and leads(i)
if jobs then
job, entry, tick = recall(i), entry .. ':' .. tick, tick + 0
elseif tick ~= '0' then
entry = entry .. ':' .. tick
end
gives = false
local wrong = job
if not record and (tick ~= '0' or act ~= claim) then
local well, why = pcall(look, i)
if not well then wrong = { err = type(why) == 'table' and why.err or why } end
end
if late and (act == claim or act == yield or verb == 'p') then
reply = 'L'
elseif apart and apart[i] then
reply = 'A'
elseif wrong and wrong.err then
reply = 'E' .. wrong.err
else
local well
local number = record and find(record, holder, 1, true) == 1 and tonumber(string.sub(record, #holder + 1))
number = number and number > 0 and number < 9007199254740992 and number
if shared[i] then number = tonumber(redis.call('ZSCORE', KEYS[i], 'n' .. holder) or nil) end
well, reply = pcall(act, i, KEYS[n + 1 + i], number, job, holder, entry, lease, hold, tick, to, verb)
if leads then pcall(elected, i, led, number, hold) end
if not well then
reply = 'E' .. (type(reply) == 'table' and reply.err or reply)
elseif job and type(reply) == 'number' and reply > 0 then
reply = format('W%d:%d', reply, job.attempt)
end
end
replies[i + 1], at = reply, at + words
end
if last_text then attempt('SET', KEYS[n + 1], last_text) end
return replies
