-- It calls in the ways that it is asked for, each within the one before, and waits in the last one. It writes what
-- Lua's own debug library says of that: a line of JSON.
local ffi = require "ffi"
ffi.cdef [[
int getpid(void);
unsigned sleep(unsigned);
void qsort(void *, size_t, size_t, int (*)(const void *, const void *));
]]
local C, todo = ffi.C, { ... }

-- What functions are called here, by their values: getinfo has the names that their callers have for them.
local names, outer = {}, {}
for _, lib in ipairs { "coroutine", "string", "table" } do
  for key, f in pairs(_G[lib]) do names[f] = lib .. "." .. key end
end
for _, key in ipairs { "pcall", "xpcall", "error", "dofile", "collectgarbage", "tostring", "require", "load" } do names[_G[key]] = key end

-- calls returns what runs from a level on, and what has resumed that.
local function calls(level)
  local list = {}
  for i = level, 1e9 do
    local info = debug.getinfo(i, "Slf")
    if not info then break end
    local name, at = names[info.func], ":0"
    if info.what ~= "C" then
      local file = info.source:sub(2)
      name = info.what == "main" and "<chunk " .. file:match "[^/]*$" .. ">" or name or "(anonymous) " .. file:match "[^/]*$" .. ":" .. info.linedefined
      at = file .. ":" .. info.currentline
    end
    if name then list[#list + 1] = '"' .. name .. " " .. at .. '"' end
  end
  for _, call in ipairs(outer) do list[#list + 1] = call end
  return list
end

local function tell(list)
  io.write('{"TID": ', C.getpid(), ', "Calls": [', table.concat(list, ", "), "]}\n")
  io.flush()
end

local run
local function wait()
  local way = table.remove(todo, 1)
  if way then run(way) return 1 end
  tell(calls(2)) C.sleep(1000) return 1
end
local function deep(n) if n > 0 then return deep(n - 1) + 1 end return wait() + 1 end
local function first(a, b) deep(1) return a < b end
local function varargs(...) local n = select("#", ...) + deep(0) return n, ... end
local function tail(n) if n == 0 then return deep(1) end return tail(n - 1) end
local function fails() error "for the handler" end
local function handler(e) deep(1) return e end
local function replace(c) deep(1) return c end
local function resumes(f, ...)
  local co = coroutine.create(f)
  outer = calls(2) table.insert(outer, 1, '"coroutine.resume :0"') assert(coroutine.resume(co, ...)) return 1
end
local function within(f, ...) resumes(f, ...) return 1 end
local function yields(n) coroutine.yield(n) deep(n) return 1 end
local function compare() deep(1) return 0 end
local Class = {}
Class.__index = function(t, key) return deep(1) + #key end
Class.__add = function(a, b) deep(0) return 1 end
Class.__call = function(self, n) deep(n) return 1 end
Class.__tostring = function(self) deep(1) return "text" end
function Class.__concat(a, b) deep(1) return "" end
function Class.__lt(a, b) deep(1) return true end
function Class:method(n) deep(n) return self end
local object = setmetatable({ method = Class.method }, Class)

names[calls], names[wait], names[deep], names[first], names[varargs], names[tail] = "calls", "wait", "deep", "first", "varargs", "tail"
names[fails], names[handler], names[replace], names[resumes], names[within], names[yields] = "fails", "handler", "replace", "resumes", "within", "yields"
names[compare] = "compare"
for key, f in pairs(Class) do if type(f) == "function" then names[f] = key end end

local ways = {
  plain = function() deep(3) return 1 end,
  recursion = function() deep(150) return 1 end,
  large = function() deep(3000) return 1 end,
  sort = function() table.sort({ 2, 1, 3 }, first) return 1 end,
  gsub = function() return (("text"):gsub("t", replace)) end,
  closure = function() local s = ("text"):gsub("t", function(c) deep(1) return c end) return s end,
  vararg = function(...) local n = varargs(1, 2, ...) return n end,
  tail = function() local n = tail(3) return n end,
  method = function() object:method(2) return 1 end,
  index = function() return object.field + 1 end,
  add = function() return (object + 1) + 1 end,
  call = function() local n = object(2) return n end,
  concat = function() local s = object .. "text" return s end,
  compare = function() return object < object and 1 or 2 end,
  tostring = function() local s = tostring(object) return s end,
  pcall = function() local ok = pcall(deep, 2) return ok end,
  within = function() local ok = pcall(pcall, pcall, deep, 2) return ok end,
  xpcall = function() local ok = xpcall(fails, handler) return ok end,
  coroutine = function() within(deep, 2) return 1 end,
  coroutines = function() within(function() within(resumes, deep, 2) return 1 end) return 1 end,
  wrap = function() local f = coroutine.wrap(yields) f(2) outer = calls(2) f() return 1 end,
  callback = function() local a = ffi.new "int[2]" C.qsort(a, 2, 4, ffi.cast("int (*)(const void *, const void *)", compare)) return 1 end,
  finalizer = function()
    local p = newproxy(true)
    local mt = getmetatable(p)
    function mt.__gc() deep(1) return 1 end
    names[mt.__gc] = "__gc"
    p, mt = nil collectgarbage() return 1
  end,
  hook = function()
    local hook = function() debug.sethook() deep(1) return 1 end
    names[hook] = "hook"
    debug.sethook(hook, "l")
    local n = 1
    return n
  end,
  text = function() return assert(loadstring("local f = ... f(2) return 1", "=a text"))(deep) end,
  many = function()
    local text = { "local f = ... local n = 0 " }
    for i = 1, 400 do text[#text + 1] = "n = n + 1\n" end
    local n = assert(loadstring(table.concat(text) .. "f(2) return n", "=many lines"))(deep)
    return n
  end,
}
function run(way) return ways[way](3, 4) and 1 end
names[run] = "run"
for name, f in pairs(ways) do names[f] = name end
if #todo > 0 then
  wait()
else
  for name in pairs(ways) do print(name) end
end
