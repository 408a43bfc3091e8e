-- commands: commands in turn, until one fails.
-- ARGV[at]  how many words the next command has, which follow
-- returns   the list of their replies
local replies, count, at = {}, 0, 1
while at <= #ARGV do
  local last = at + ARGV[at]
  count = count + 1
  replies[count] = redis.call(unpack(ARGV, at + 1, last))
  at = last + 1
end
return replies
