-- revoked: takes the record of an owner from it. The record keeps its end, and gets a ! before its value.
-- returns  nothing: it defines a function that returns nothing
local function revoke_record(key, record)
  -- PEXPIRE comes first because it needs no memory: the server does not refuse the next write for want of memory.
  local left = redis.call('PTTL', key)
  if left > 0 then redis.call('PEXPIRE', key, left) end
  redis.call('SET', key, '!' .. record, 'KEEPTTL')
end
