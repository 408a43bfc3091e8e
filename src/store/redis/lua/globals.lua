-- globals: the globals of the caller's script, where the server does not protect its own: before Redis 7.0 an assignment to
-- `redis.call` stays, and breaks every later script. The script has copies that end with it. What reaches the server's own
-- globals is left out, or replaced: loaded code has the same copies, and the strings' metatable is not given away.
-- returns   nothing: `body` has them
if body and rawget(_G, 'setfenv') and not rawget(redis, 'REDIS_VERSION_NUM') then
  local globals = {}
  local names = '_VERSION assert bit cjson cmsgpack collectgarbage coroutine error gcinfo ipairs math next os pairs pcall print '
    .. 'rawequal rawget rawset redis select setmetatable string struct table tonumber tostring type unpack xpcall'
  for name in string.gmatch(names, '%S+') do
    local value = rawget(_G, name)
    if type(value) == 'table' then
      globals[name] = {}
      for field, part in pairs(value) do globals[name][field] = part end
    else
      globals[name] = value
    end
  end
  globals._G = globals
  local function with_globals(chunk, said) return chunk and setfenv(chunk, globals), said end
  function globals.loadstring(...) return with_globals(loadstring(...)) end
  function globals.load(...) return with_globals(load(...)) end
  function globals.getmetatable(value)
    if type(value) == 'table' then return getmetatable(value) end
  end
  local function refuse(did) return function(_, name)
    error('Script attempted to ' .. did .. ' global variable ' .. tostring(name), 2)
  end end
  setmetatable(globals, { __index = refuse('access nonexistent'), __newindex = refuse('create'), __metatable = false })
  setfenv(body, globals)
end
