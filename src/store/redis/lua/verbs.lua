-- verbs: finds the functions that the remaining requests call. The later files define only these functions, to save
-- time. A function that a kind does not have stays nil.
-- ARGV[word+1]  verb of each remaining request
-- ARGV[word+5]  tick of each remaining request
-- ARGV[word+6]  to of each remaining request
-- returns       nothing: the later files read the variables below
local claim, renew, leave, finish, yield, pass, extend, ask
-- Which verbs remain, whether an owner may have lost its record, and whether some key is free or may become free.
local claims, waits, renews, asserts, leaves, finishes, yields, passes, extends, asks, frees
for i = first, n do
  local word = at + (i - first) * words
  local verb = ARGV[word + 1]
  if verb == 'w' then
    claims, waits = true, true
  elseif verb == 'c' then
    claims = true
  elseif verb == 'r' then
    renews = true
    asserts = asserts or not records[i] and find(ARGV[word + 6], '%d')
  elseif verb == 'y' then
    yields, frees = true, true
  elseif verb == 'p' or verb == 'a' then
    passes, frees = true, true
  elseif verb == 'e' then
    extends = true
  elseif verb == 'l' or verb == 'f' then
    leaves, frees, finishes = true, true, finishes or verb == 'f'
  else
    asks = true
  end
  -- A key that a reader owns may hold a string, see renew.lua; then it is handed on to more readers.
  frees = frees or not records[i] or verb == 'r' and kind == 'lock' and ARGV[word + 5] ~= '0'
end
