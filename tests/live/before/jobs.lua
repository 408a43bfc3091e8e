-- The script for jobs of commit c815443, as a server of that version has it. Only for tests of what runs beside it.
local KEYS, ARGV, call, pcall = KEYS, ARGV, redis.call, redis.pcall
local n = (#KEYS - 1) / 3
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
local mark, memory
local function recall(i)
local key = KEYS[2 * n + 1 + i]
local found = pcall('HMGET', key, 'mark', 'attempt', 'skipped', 'done', 'winner')
if found.err then return found.err end
local numbers = {}
for j = 1, 3 do
numbers[j] = found[j] and (tonumber(found[j]) or -1) or 0
if not (numbers[j] >= 0 and numbers[j] <= 9007199254740992) then
return 'ERR ' .. key .. ' does not hold what is known of a job'
end
end
memory = {
key = key,
mark = numbers[1],
attempt = numbers[2],
skipped = numbers[3],
done = found[4] == '1',
winner = found[5],
}
end
local function open(tick)
return tick > memory.mark and tick > memory.skipped or tick == memory.mark and not memory.done
end
local prune_dead = prune
prune = function(i)
local err = prune_dead(i)
if err then return err end
local queue = KEYS[n + 1 + i]
for _, member in ipairs(call('ZRANGEBYSCORE', queue, 0, '(' .. EARLIEST)) do
local tick = tonumber(match(member, ':(%d+)$'))
if tick and not open(tick) then
local out = pcall('ZREM', queue, member, 'b' .. sub(member, 2))
if type(out) == 'table' then return out.err end
end
end
end
local grant_lease = grant
grant = function(i, holder, hold, tick)
tick = tonumber(tick) or mark
local attempt = tick == memory.mark and memory.attempt + 1 or 1
local set = pcall('HSET', memory.key, 'mark', format('%d', tick), 'done', '0', 'attempt', format('%d', attempt),
'winner', sub(holder, 1, -2))
if type(set) == 'table' then return nil, set.err end
memory.mark, memory.done, memory.attempt, memory.winner = tick, false, attempt, sub(holder, 1, -2)
told = '1 job %s %s %s %s ' .. format('%d ', attempt)
return grant_lease(i, holder, hold)
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
local function claim(i, waits, holder, lease, hold)
local entry = holder .. lease .. ':' .. hold .. tail
if not records[i] then
local err = settle(i, entry)
if err then return 'E' .. err end
end
local number = owned(i, holder)
if number then
local err = extend(i, hold)
return err and 'E' .. err or number
end
if not open(mark) then return 'O' end
if mark > ms then return format('F%d', mark - ms) end
if not records[i] then
local new, err = grant(i, holder, hold)
return new or 'E' .. err
end
if mark > memory.mark then
local set = pcall('HSET', memory.key, 'skipped', format('%d', mark))
if type(set) == 'table' then return 'E' .. set.err end
memory.skipped = mark
return left(i, 'B')
end
if not waits then return left(i, 'B') end
local err = enqueue(i, entry, lease)
return err and 'E' .. err or left(i, 'Q')
end
local function finish(i, holder, lease, hold)
local finished = mark == memory.mark and memory.winner == sub(holder, 1, -2)
if finished then
pcall('ZREM', KEYS[n + 1 + i], 'b')
local set = pcall('HSET', memory.key, 'done', '1')
if type(set) == 'table' then return 'E' .. set.err end
memory.done = true
end
local reply = leave(i, holder, lease, hold)
return finished and reply == 'N' and 0 or reply
end
local replies, more = { us }, 6 + n
for i = 1, n do
local verb, holder, lease, hold, to, reply = byte(ARGV[4], i), ARGV[6 + i], ARGV[5], ARGV[6], nil, nil
more = more + 1
mark, tail = tonumber(ARGV[more]), ':' .. ARGV[more]
if verb < 97 then
verb, lease, hold, more = verb + 32, ARGV[more + 1], ARGV[more + 2], more + 2
end
if verb == 121 then
more = more + 1
to = ARGV[more]
end
if late and (to or verb == 99 or verb == 119) then
reply = 'L'
else
local err = not records[i] and typed(i) or recall(i)
if err then
reply = 'E' .. err
elseif verb == 114 then
reply = renew(i, holder, lease, hold)
if reply == 'X' and not open(mark) then reply = 'O' end
elseif verb == 108 then
reply = leave(i, holder, lease, hold)
elseif verb == 102 then
reply = finish(i, holder, lease, hold)
elseif to then
reply = yield(i, holder, lease, hold, to)
else
reply = claim(i, verb == 119, holder, lease, hold)
end
end
if type(reply) == 'number' and reply > 0 then reply = format('W%d:%d', reply, memory.attempt) end
replies[i + 1] = reply
end
if last_text then
pcall('SET', KEYS[n + 1], last_text)
end
return replies
