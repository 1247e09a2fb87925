-- Calls functions of a module, whose file has ended, all the time: their calls are over before somebody can ask what they were.
local loadtext = loadstring or load
local module = loadtext([[
local M = {}
local function helper(n) local s = 0 for i = 1, n do s = s + i % 7 end return s end
function M.area(n) local r = helper(n) return r end
M.Square = {}
function M.Square.side(n) local r = M.area(n) return r end
return M
]], "@module.lua")()
collectgarbage()
local function run() for _ = 1, 1000 do local r = module.area(5000) r = module.Square.side(5000) end end
io.write("running\n")
io.stdout:flush()
while true do run() end
