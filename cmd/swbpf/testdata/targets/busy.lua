-- Functions that call each other in all ways that Lua has, for so many seconds of CPU time.
local seconds = tonumber(...)
local ffi = require 'ffi'
ffi.cdef[[ void qsort(void*, size_t, size_t, int (*)(const int*, const int*)); ]]
local C = ffi.C
local function spin(n) local s = 0 for i = 1, n do s = (s * 31 + i) % 65537 end return s end
local function floors(n) local s = 0 for i = 1, n do s = s + math.floor(i / 3) % 7 end return s end
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local Obj = {}
Obj.__index = Obj
function Obj:run(n) local s = spin(n) return s + fib(8) end
function Obj.new() return setmetatable({}, Obj) end
local function replace(c) return c .. tostring(spin(20)) end
local function text(n) local s = string.rep('a', 20):gsub('.', replace) return #s end
local function less(a, b) return spin(5) >= 0 and a < b end
local function sorts(n) local t = {} for i = 1, 40 do t[i] = (i * 7919) % 101 end table.sort(t, less) return t[1] end
local function gen(n) for i = 1, n do coroutine.yield(spin(10) + i) end end
local function inner(n) for v in coroutine.wrap(function() gen(n) return end) do coroutine.yield(v) end end
local function coro(n) local s = 0 local co = coroutine.create(inner) while true do local ok, v = coroutine.resume(co, n) if not v then break end s = s + v end return s end
local function index(t, k) return spin(#k + 10) end
local function add(a, b) return spin(15) end
local mt = setmetatable({}, {__index = index, __add = add})
local function meta(n) local s = 0 for i = 1, n do s = s + mt['key' .. i] + (mt + i) end return s end
local function fails(n) spin(10) error({n}) end
local function handler(e) spin(20) return e end
local function protects(n) local s = 0 for i = 1, n do local ok, e = pcall(fails, i) s = s + e[1] xpcall(fails, handler, i) end return s end
local function varargs(...) local a, b = ... return spin(10) + select('#', ...) + a end
local function vararg(n) local s = 0 for i = 1, n do s = s + varargs(i, n, s) end return s end
local function tail(n) if n == 0 then return spin(10) end return tail(n - 1) end
local function tails(n) local s = tail(n) return s end
local function compare(a, b) spin(3) return a[0] - b[0] end
local cb = ffi.cast('int (*)(const int*, const int*)', compare)
local function callback(n) local a = ffi.new('int[?]', n) for i = 0, n - 1 do a[i] = (i * 7919) % 101 end C.qsort(a, n, 4, cb) return a[0] end
local function finalize() spin(30) end
local function collects(n) for i = 1, n do local p = newproxy(true) getmetatable(p).__gc = finalize end collectgarbage() return 1 end
local function deep(n) if n == 0 then return spin(20) end return 1 + deep(n - 1) end
local function iterate(n) local s = 0 local t = {} for i = 1, n do t['k' .. i] = i end for k, v in pairs(t) do s = s + v + #k end for i, v in ipairs({1, 2, 3}) do s = s + v end return s end
local function compiles() return jit.status() end
local function round(o)
  local s = o:run(200)
  s = s + floors(300)
  s = s + text(1)
  s = s + sorts(1)
  s = s + coro(10)
  s = s + meta(5)
  s = s + protects(3)
  s = s + vararg(10)
  s = s + tails(10)
  if not compiles() then s = s + callback(20) end -- a trace may not be called back in
  s = s + collects(2)
  s = s + deep(30)
  s = s + iterate(20)
  return s
end
local function main() local o = Obj.new() local s = 0 while os.clock() < seconds do s = s + round(o) end return s end
main()
