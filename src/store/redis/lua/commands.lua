-- commands: executes commands in order, until one fails.
-- ARGV[at]  number of words of the next command; the words follow
-- returns   list of the replies
local replies, count, at = {}, 0, 1
while at <= #ARGV do
  local last = at + ARGV[at]
  count = count + 1
  replies[count] = redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return replies
