-- used: how many permits of a semaphore are held, and whether somebody holds some as of another number of permits.
-- KEYS[i]  the record
-- returns  of a claim that was granted while somebody did: G<number>:<of so many>, of the first of them to end; of u:
--          I<permits>, or I = all
if claims then
  local alike = claim
  function claim(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    local theirs = string.match(shared[i] or '', '/(%d+)$')
    local reply = alike(i, queue, number, job, holder, entry, lease, hold, tick, to, verb)
    if number or type(reply) ~= 'number' or not theirs or theirs == string.match(tick, '%d+$') then return reply end
    return format('G%d:%s', reply, theirs)
  end
end

local ask
if asks then
  -- Who waits for free ones gets them before.
  function ask(i, queue)
    -- Whoever has it as no claim of ours has all of it.
    if records[i] then return 'I' end
    hand_over(i, queue)
    return 'I' .. (look(i) and used(i) or 0)
  end
end
