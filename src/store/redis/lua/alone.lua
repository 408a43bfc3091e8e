-- alone: who runs a job has its record alone, which is a string. It stands in for share.
-- KEYS[i]  the record
-- returns  functions answer what is said above them
local shared = {}
local join, part, fits, push

-- Nobody shares it. A record that is no string is an error.
local function look(i)
  redis.call('GET', KEYS[i])
  return false
end
