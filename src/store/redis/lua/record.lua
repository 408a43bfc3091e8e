-- record: who owns a key, until when, and how a holder becomes its owner. From here on a command that fails raises its
-- error, which becomes the reply to the request. A function is made only when some request may call it, and finds
-- everything in one table: each local of the script that it uses would have to be made ready for it.
-- KEYS[i]       the record
-- KEYS[n+1]     the clock
-- ARGV[3]       flags
-- ARGV[word+1]  the verbs of what is to come
-- returns       functions answer what is said above them
local t = {
  n = n, us = us, ms = ms, late = late, jobs = jobs, records = records, queues = queues, last = last, last_text = last_text,
  probes = find(ARGV[3], 'p', 1, true),
  -- Whether some key is free, or becomes so.
  frees = false,
  -- Which verbs are to come.
  c = false, w = false, r = false, l = false, f = false, y = false,
}
for i = first, n do
  local word = at + (i - first) * words
  local verb = ARGV[word + 1]
  t[verb] = true
  t.frees = t.frees or not records[i] or verb == 'l' or verb == 'f' or verb == 'y'
end

-- The grant number in a record that this holder owns, else nil.
function t.owned_by(i, holder)
  local record = t.records[i]
  local number = record and string.find(record, holder, 1, true) == 1 and tonumber(string.sub(record, #holder + 1))
  return number and number > 0 and number or nil
end

-- To the full lease, whatever is left of it: a claim has one length for life.
function t.extend(i, hold)
  redis.call('PEXPIRE', KEYS[i], hold)
end

-- A letter, and the milliseconds after which the present owner's record ends, if it ends.
function t.left(i, letter)
  local ttl = redis.call('PTTL', KEYS[i])
  return ttl < 0 and letter or letter .. string.format('%d', ttl)
end

if t.frees then
  -- Makes a holder the owner of a key that is free, or that its owner gives away. Answers the number.
  function t.grant(i, job, holder, hold, tick)
    if job then t.count(job, holder, tick) end
    local number = t.last + 1
    if number < t.us then number = t.us end
    local text = string.format('%d', number)
    local record = holder .. text
    if t.records[i] then
      redis.call('SET', KEYS[i], record, 'PX', hold)
    elseif not redis.call('SET', KEYS[i], record, 'NX', 'PX', hold) then
      error({ err = 'WRONGTYPE the record is not a string' })
    end
    t.last, t.last_text, t.records[i] = number, text, record
    return number
  end
end
