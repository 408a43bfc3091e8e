-- used: how many permits of a semaphore are held.
-- KEYS[i]  the record
-- returns  I<permits>, or I = all
if asks then
  -- Waiters for free permits are granted them first.
  function ask(i, queue)
    -- A record that is a string is of another client, which has all permits.
    if records[i] then return 'I' end
    hand_over(i, queue)
    return 'I' .. (look(i) and used(i) or 0)
  end
end
