-- globals: gives the caller's script its own global variables, on servers before Redis 7.0. Such a server does not
-- protect its globals: an assignment to `redis.call` would stay, and break every later script. Here each library is a
-- new table in front of the original. The tables take the script's assignments, and end with the script. Functions that
-- reach the server's own globals are left out or replaced: loaded code gets the same tables, and the metatable of
-- strings is not returned.
-- returns   nothing: `body` uses these globals
if body and rawget(_G, 'setfenv') and not rawget(redis, 'REDIS_VERSION_NUM') then
  local function front(library) return setmetatable({}, { __index = library, __metatable = false }) end
  local globals = {
    _VERSION = _VERSION, assert = assert, collectgarbage = collectgarbage, error = error, gcinfo = gcinfo, ipairs = ipairs,
    next = next, pairs = pairs, pcall = pcall, rawequal = rawequal, rawget = rawget, rawset = rawset, select = select,
    setmetatable = setmetatable, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, xpcall = xpcall,
    bit = front(bit), cjson = front(cjson), cmsgpack = front(cmsgpack), coroutine = front(coroutine), math = front(math),
    redis = front(redis), string = front(string), struct = front(struct), table = front(table),
  }
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
