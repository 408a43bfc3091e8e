-- verbs: which functions some request is going to call: none is made that is not. What a kind does without stays nil.
-- ARGV[word+1]  the verbs of what is to come
-- ARGV[word+5]  and their ticks
-- returns       nothing: what follows reads the names below
local claim, renew, leave, finish, yield, pass, extend, ask
-- Which verbs are to come, and whether some key is free, or becomes so.
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
  -- An owner that reads may have been handed a string.
  frees = frees or not records[i] or verb == 'r' and kind == 'lock' and ARGV[word + 5] ~= '0'
end
