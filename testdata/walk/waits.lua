-- Writes as a line of JSON what functions of Lua run by its own account, innermost first, each with its source,
-- where it begins and its line, and waits for somebody to open the FIFO that is named. The calls are of all kinds.
local fifo = ...
local loadtext = loadstring or load
local threads = {} -- that have resumed others, outermost first

local main = {} -- what runs outside of all threads

local function add(calls, thread, level)
  while true do
    local info
    if thread then info = debug.getinfo(thread, level, "Sl") else info = debug.getinfo(level, "Sl") end
    if not info then return end
    if info.what == "Lua" or info.what == "main" then
      local file = info.source:match("^@(.*)") or "<chunk " .. info.short_src .. ">"
      calls[#calls + 1] = ("%q"):format(("%s:%d:%d"):format(file, info.linedefined, info.currentline))
    end
    level = level + 1
  end
end

local function tell()
  local calls = {}
  add(calls, nil, 3)
  for i = #threads - 1, 1, -1 do add(calls, threads[i], 0) end
  for _, call in ipairs(main) do calls[#calls + 1] = call end
  local stat = io.open("/proc/self/stat")
  local pid = stat:read("*n")
  stat:close()
  io.write(('{"TID":%d,"Calls":[%s]}\n'):format(pid, table.concat(calls, ",")))
  io.stdout:flush()
end

local function within(f, ...) -- runs f in a coroutine
  local thread = coroutine.create(function(...)
    coroutine.yield()
    f(...)
  end)
  threads[#threads + 1] = thread
  coroutine.resume(thread, ...)
  if #threads == 1 then add(main, nil, 2) end local ok, err = coroutine.resume(thread)
  if not ok then error(err, 0) end
end

local function wait()
  tell() io.open(fifo) tell()
end

local function recursion(n)
  if n == 0 then return wait() and 0 end
  local r = recursion(n - 1)
  return r and r + 1
end

local function tail(n)
  if n > 0 then return tail(n - 1) end
  recursion(100)
  return 0
end

local function varargs(...)
  local first, second = ...
  local r = tail(select("#", ...))
  return r, first, second
end

local Object = {}
Object.__index = function(object, key)
  local r = varargs(object, key, 3)
  return r
end
Object.__add = function(a, b)
  local r = a.missing
  return r, b
end
Object.__concat = function(a, b)
  return (a + b)
end
Object.__eq = function(a, b)
  local _ = a .. b
  return true
end
Object.__call = function(self, x)
  local is = self == setmetatable({}, Object)
  return is, x
end
Object.__lt = function(a, b)
  local r = a(b)
  return r
end

function Object.iterate(state)
  return function()
    local _ = state < state
  end
end

local function loops(object)
  for _ in Object.iterate(object) do end
end

local function protected(object)
  local ok, err = pcall(loops, object)
  if not ok then error(err, 0) end
end

local function handled(object)
  xpcall(function() local x = nil + 1 return x end, function()
    protected(object)
    return 1
  end)
end

local function sorted(object)
  table.sort({2, 1}, function(a, b)
    handled(object)
    return a < b
  end)
end

local function replaced(object)
  ("x"):gsub(".", function(c)
    within(sorted, object)
    return c
  end)
end

function global(object)
  local f = loadtext("local f, object = ...\n\nf(object)\nreturn 1", "=text")
  f(replaced, object)
end

local chunk = loadtext("global(...)\nreturn 2")
within(function(object)
  chunk(object)
  return 1
end, setmetatable({}, Object))
