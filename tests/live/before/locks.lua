-- The script for locks of commit c815443, as a server of that version has it. Only for tests of what runs beside it.
local KEYS, ARGV, call, pcall = KEYS, ARGV, redis.call, redis.pcall
if #ARGV == 2 then
local value = pcall('GET', KEYS[1])
if value and not value.err and string.find(value, ARGV[1], 1, true) == 1 and call('EXISTS', KEYS[3]) == 0 then
local gone = pcall('DEL', KEYS[1])
if type(gone) == 'table' then return { 0, 'E' .. gone.err } end
return 0
end
local highest, flags, lease, hold = string.match(ARGV[2], '^(%d+) (%a*) (%d+) (%d+)$')
ARGV = { highest, '0', flags, 'l', lease, hold, ARGV[1] }
elseif #ARGV == 5 then
local seen = ARGV[4] + 0
if seen < 9007199254740990 and call('EXISTS', KEYS[1], KEYS[3]) == 0 then
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local number, late = us, ARGV[3] + 0
if late > 0 and us > late then return { us, 'L' } end
if seen >= number then number = seen + 1 end
local text = string.format('%d', number)
local stored = pcall('SET', KEYS[2], text, 'GET')
if stored and stored.err then return { us, 'E' .. stored.err } end
local last = stored and tonumber(stored) or 0
if stored and not (last > 0 and last < number) then
call('SET', KEYS[2], stored)
else
local set = pcall('SET', KEYS[1], ARGV[1] .. text, 'PX', ARGV[2])
if set.err then return { us, 'E' .. set.err } end
return number == us and us or { us, number }
end
end
local verb, flags, lease = string.match(ARGV[5], '^(%a)(%a*)(%d+)$')
ARGV = { ARGV[4], ARGV[3], flags, verb, lease, ARGV[2], ARGV[1] }
end
local n = (#KEYS - 1) / 2
local byte, find, format, match, sub = string.byte, string.find, string.format, string.match, string.sub
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local ms = (us - us % 1000) / 1000
local records = call('MGET', unpack(KEYS, 1, n + 1))
local stored = records[n + 1]
stored = stored and (tonumber(stored) or -1) or 0
local last = tonumber(ARGV[1])
if stored > last then last = stored end
if not (stored >= 0 and last + n < 9007199254740991) then
return redis.error_reply('TENURECLOCK ' .. KEYS[n + 1] .. ' does not hold a grant number')
end
local last_text
local late = tonumber(ARGV[2])
late = late > 0 and us > late
local probes = find(ARGV[3], 'p', 1, true)
local queues
if find(ARGV[3], 'q', 1, true) then
queues = call('EXISTS', unpack(KEYS, n + 2, 2 * n + 1))
end
local verbs, common_lease, common_hold = ARGV[4], ARGV[5], ARGV[6]
local replies, first, more = { us }, 1, 6 + n
if queues == 0 then
local leaving, leaves = {}, 0
for i = 1, n do
local verb, record, holder, hold, own = byte(verbs, i), records[i], ARGV[6 + i], common_hold, 0
if verb < 97 then verb, hold, own = verb + 32, ARGV[more + 2], 2 end
local reply
if verb == 108 and record and find(record, holder, 1, true) == 1 then
leaves = leaves + 1
leaving[leaves] = KEYS[i]
reply = 0
elseif not record and not late and (verb == 119 or verb == 99) then
local number = last + 1
if number < us then number = us end
local text = format('%d', number)
local set = pcall('SET', KEYS[i], holder .. text, 'NX', 'PX', hold)
if not set then
reply = 'EWRONGTYPE the record is not a string'
elseif set.err then
reply = 'E' .. set.err
else
last, last_text, reply = number, text, number
end
else
break
end
replies[i + 1], first, more = reply, i + 1, more + own
end
if leaves > 0 then
local gone = pcall('DEL', unpack(leaving))
if type(gone) == 'table' then
local at = 1
for i = 1, first - 1 do
if KEYS[i] == leaving[at] then
replies[i + 1], at = 'E' .. gone.err, at + 1
end
end
end
end
if first > n then
if last_text then pcall('SET', KEYS[n + 1], last_text) end
return replies
end
end
local EARLIEST = '10000000000'
local tail, told = '', '1 lock %s %s %s %s '
local function waiting(i)
if queues == 0 then return false end
if n == 1 or not queues then return true end
return pcall('EXISTS', KEYS[n + 1 + i]) ~= 0
end
local function typed(i)
local value = pcall('GET', KEYS[i])
return value and value.err
end
local function prune(i)
local queue = KEYS[n + 1 + i]
local dead = pcall('ZRANGEBYSCORE', queue, EARLIEST, format('(%d', ms))
if dead.err then return dead.err end
for from = 1, #dead, 500 do
local out = {}
for j = from, math.min(from + 499, #dead) do
out[#out + 1] = dead[j]
out[#out + 1] = 'a' .. sub(dead[j], 2)
end
local gone = pcall('ZREM', queue, unpack(out))
if type(gone) == 'table' then return gone.err end
end
end
local function bound(queue)
local top = pcall('ZRANGE', queue, -1, -1, 'WITHSCORES')
if top[2] then pcall('PEXPIREAT', queue, top[2]) end
end
local function touch(i, entry, lease)
local queue = KEYS[n + 1 + i]
local b = 'b' .. entry
local changed = pcall('ZADD', queue, 'XX', 'CH', ms + lease, b)
if type(changed) == 'table' then
if not find(changed.err, 'OOM', 1, true) then return false, changed.err end
bound(queue)
changed = pcall('ZADD', queue, 'XX', 'CH', ms + lease, b)
if type(changed) == 'table' then return false, changed.err end
end
if changed == 0 and not pcall('ZSCORE', queue, b) then return false end
bound(queue)
return true
end
local function enqueue(i, entry, lease)
local err = prune(i)
if err then return err end
local queue = KEYS[n + 1 + i]
local latest = pcall('ZREVRANGEBYSCORE', queue, EARLIEST, 0, 'WITHSCORES', 'LIMIT', 0, 1)
local place = latest[2] and latest[2] + 1 or 1
local added = pcall('ZADD', queue, 'NX', place, 'a' .. entry, ms + lease, 'b' .. entry)
if type(added) == 'table' then return added.err end
bound(queue)
end
local function grant(i, holder, hold)
local number = last + 1
if number < us then number = us end
local text = format('%d', number)
local value = holder .. text
local set = pcall('SET', KEYS[i], value, 'NX', 'PX', hold)
if not set then return nil, 'WRONGTYPE the record is not a string' end
if set.err then return nil, set.err end
last, last_text = number, text
records[i] = value
return number
end
local function hand_over(i, caller)
local queue = KEYS[n + 1 + i]
local from, to = 0, 0
while true do
local found = pcall('ZRANGE', queue, from, to)
if found.err then return false, found.err end
for _, member in ipairs(found) do
if byte(member) ~= 97 then return false end
local entry = sub(member, 2)
local node, claim, nonce, lease, hold, tick = match(entry, '^(%x+):(%d+):(%x+):(%d+):(%d+):?(%d*)$')
local chosen = entry == caller
if node and not chosen then
local dies = tonumber(pcall('ZSCORE', queue, 'b' .. entry) or 0)
chosen = dies and ms + (lease - lease % 3) / 3 <= dies
if chosen and probes then
local heard = pcall('PUBSUB', 'NUMSUB', 'tenure1:n:' .. node)
chosen = heard.err or heard[2] > 0
end
end
if node and chosen then
local out = pcall('ZREM', queue, member, 'b' .. entry)
if type(out) == 'table' then return false, out.err end
local _, err = grant(i, format('%s:%s:%s:', node, claim, nonce), hold, tick)
if err then return false, err end
if entry ~= caller then
pcall('PUBLISH', 'tenure1:n:' .. node, format(told, claim, nonce, last_text, lease) .. KEYS[i])
end
return true
end
end
if #found <= to - from then return false end
from, to = to + 1, to + 32
end
end
local function settle(i, caller)
local err = typed(i) or prune(i)
if err then return err end
local _, failed = hand_over(i, caller)
return failed
end
local function extend(i, hold)
local left = pcall('PTTL', KEYS[i])
if type(left) == 'table' then return left.err end
if left < hold + 0 then
local done = pcall('PEXPIRE', KEYS[i], hold)
if type(done) == 'table' then return done.err end
end
end
local function owned(i, holder)
local value = records[i]
local number = value and find(value, holder, 1, true) == 1 and tonumber(sub(value, #holder + 1))
return number and number > 0 and number or nil
end
local function left(i, letter)
local ttl = pcall('PTTL', KEYS[i])
if type(ttl) == 'table' then return 'E' .. ttl.err end
return ttl < 0 and letter or letter .. format('%d', ttl)
end
local function claim(i, waits, holder, lease, hold)
local entry = holder .. lease .. ':' .. hold .. tail
if not records[i] and waiting(i) then
local err = settle(i, entry)
if err then return 'E' .. err end
end
local number = owned(i, holder)
if number then
local err = extend(i, hold)
return err and 'E' .. err or number
end
if not records[i] then
local new, err = grant(i, holder, hold)
return new or 'E' .. err
end
if not waits then return left(i, 'B') end
local err = enqueue(i, entry, lease)
return err and 'E' .. err or left(i, 'Q')
end
local function renew(i, holder, lease, hold)
local entry = holder .. lease .. ':' .. hold .. tail
local number = owned(i, holder)
if number then
local err = extend(i, hold)
return err and 'E' .. err or number
end
local err = not records[i] and typed(i) or prune(i)
if err then return 'E' .. err end
local waits, failed = touch(i, entry, lease)
if failed then return 'E' .. failed end
if not records[i] then
local _, stuck = hand_over(i, entry)
if stuck then return 'E' .. stuck end
number = owned(i, holder)
if number then return number end
end
return waits and left(i, 'Q') or 'X'
end
local function leave(i, holder, lease, hold)
if owned(i, holder) then
local alone = queues == 0 or prune(i)
local gone = pcall('DEL', KEYS[i])
if type(gone) == 'table' then return 'E' .. gone.err end
records[i] = false
if not alone then hand_over(i) end
return 0
end
local err = not records[i] and typed(i) or prune(i)
if err then return 'E' .. err end
local entry = holder .. lease .. ':' .. hold .. tail
local out = pcall('ZREM', KEYS[n + 1 + i], 'a' .. entry, 'b' .. entry)
if type(out) == 'table' then return 'E' .. out.err end
if not records[i] then hand_over(i) end
return out > 0 and 0 or 'N'
end
local function yield(i, holder, lease, hold, to)
if not records[i] then
local err = settle(i, holder .. lease .. ':' .. hold .. tail)
if err then return 'E' .. err end
end
if not owned(i, holder) then
local none = pcall('ZREM', KEYS[n + 1 + i], 'b')
return type(none) == 'table' and 'E' .. none.err or 'X'
end
local err = prune(i)
if err then return 'E' .. err end
local gone = pcall('DEL', KEYS[i])
if type(gone) == 'table' then return 'E' .. gone.err end
records[i] = false
local handed, failed = hand_over(i)
if failed then return 'E' .. failed end
if not handed then
local number, refused = grant(i, to, hold)
return number or 'E' .. refused
end
local stuck = enqueue(i, to .. lease .. ':' .. hold .. tail, lease)
return stuck and 'E' .. stuck or left(i, 'Q')
end
for i = first, n do
local verb, holder, lease, hold, to, reply = byte(verbs, i), ARGV[6 + i], common_lease, common_hold, nil, nil
if verb < 97 then
verb, lease, hold, more = verb + 32, ARGV[more + 1], ARGV[more + 2], more + 2
end
if verb == 121 then
more = more + 1
to = ARGV[more]
end
if verb == 108 then
reply = leave(i, holder, lease, hold)
elseif verb == 114 then
reply = renew(i, holder, lease, hold)
elseif late then
reply = 'L'
elseif to then
reply = yield(i, holder, lease, hold, to)
else
reply = claim(i, verb == 119, holder, lease, hold)
end
replies[i + 1] = reply
end
if last_text then
pcall('SET', KEYS[n + 1], last_text)
end
return replies
