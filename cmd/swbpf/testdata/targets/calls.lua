-- Functions that call each other by Lua and by way of C, for so many seconds. Each is defined in a line of its own.
local function spin(n) local s = 0 for i = 1, n do s = s + i % 7 end return s end
local function fib(n) if n < 2 then return spin(40) end return fib(n - 1) + fib(n - 2) end
local function less(a, b) spin(20) return a < b end
local function sorts() local t = {} for i = 1, 100 do t[i] = i * 7919 % 1009 end table.sort(t, less) return #t end
local function replace(c) spin(30) return c end
local function text() local s = string.gsub(string.rep("abc", 60), "b", replace) return #s end
local function fails() spin(300) error("no") end
local function handler(e) spin(200) return e end
local function protects() local ok = pcall(fails) local no = xpcall(fails, handler) return spin(100), ok, no end
local function index(_, k) spin(100) return k end
local meta = setmetatable({}, {__index = index})
local function metas() local s = 0 for _ = 1, 30 do s = s + #meta.field end return s end
local function deep(n) if n == 0 then return spin(2000) end local s = deep(n - 1) return s + 1 end
local function tail(n) if n == 0 then return spin(3000) end return tail(n - 1) end
local function gen() for i = 1, 20 do spin(100) coroutine.yield(i) end end
local function coro() local s = 0 for i in coroutine.wrap(gen) do s = s + i end return s end
local function round() local s = fib(12) s = s + sorts() s = s + text() s = s + protects() s = s + metas() s = s + deep(20) s = s + tail(9) s = s + coro() return s end
local function main(seconds) local stop = os.clock() + seconds while os.clock() < stop do round() end end
main(tonumber(arg[1]))
