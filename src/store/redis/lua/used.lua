-- used: returns how many permits of a semaphore are in use.
-- KEYS[i]  record
-- returns  I<permits>, or I = all
if asks then
  -- Free permits are first granted to waiters.
  function ask(i, queue)
    -- A record that is a string belongs to a foreign client, which has all permits.
    if records[i] then return 'I' end
    hand_over(i, queue)
    return 'I' .. (look(i) and permits_in_use(i) or 0)
  end
end
