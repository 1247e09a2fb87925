-- Writes as a line of JSON what the functions are called that run, innermost first, by the variables and fields that have
-- them, and waits for somebody to open the FIFO that is named. Each function calls the next one by step.
local fifo = ...
local loadtext = loadstring or load
local order, n = {}, 0
local function step()
  n = n + 1
  local r = order[n][2]()
  return r
end

-- What has made a module's functions has ended, and is gone.
local module = loadtext([[
local step = ...
local M = {}
local function helper() local r = step() return r end
function M.area() local r = helper() return r end
M.Square = {}
M.Square.__index = M.Square
function M.Square:side() local r = step(self) return r end
M.list = {first = function() local r = step() return r end}
local counter
counter = function() local r = step() return r end
function M.count() local r = counter() return r end
M["odd key"] = function() local r = step() return r end
function M.make() return function() local r = step() return r end end
return M
]], "@module.lua")
module = module(step)
collectgarbage()

function start() local r = step() return r end
Account = {deposit = {}}
function Account.deposit.money() local r = step() return r end
local assigned
local function assign() assigned = function() local r = step() return r end end
assign()
local made = module.make()
local one, two = function() local r = step() return r end, function() local r = step() return r end
local object = setmetatable({}, {__add = function() local r = step() return r end})
local function inTable() return {function() local r = step() return r end} end
local without = inTable()[1]
function Keep() return made, one, without end -- which has these as variables: who has only local ones is not looked at
local ofText = loadtext("return function(step) local function within() local r = step() return r end local r = within() return r end")()

local function add(names, f) order[#order + 1] = {names, f} end
add({"start"}, start)
add({"helper", "area"}, module.area)
add({"side"}, function() local r = setmetatable({}, module.Square):side() return r end)
add({"first"}, module.list.first)
add({"counter", "count"}, module.count)
add({"odd key"}, module["odd key"])
add({"made"}, made)
add({"money"}, Account.deposit.money)
add({"assigned"}, function() local r = assigned() return r end)
add({"one"}, one)
add({"two"}, two)
add({"__add"}, function() local r = object + 1 return r end)
add({"without"}, without)
add({"within", "ofText"}, function() local r = ofText(step) return r end)
-- What adds calls without being called anything stands where it is defined.
for _, is in ipairs(order) do
  local info = debug.getinfo(is[2], "S")
  if info.source:sub(1, 1) == "@" and info.source ~= "@module.lua" and is[2] ~= start and is[2] ~= one and is[2] ~= two and is[2] ~= without
    and is[2] ~= Account.deposit.money then
    is[1][#is[1] + 1] = info.source:match("[^/]+$") .. ":" .. info.linedefined
  end
end

local function wait()
  local names = {"wait"}
  for i = #order - 1, 1, -1 do
    names[#names + 1] = "step"
    for _, name in ipairs(order[i][1]) do names[#names + 1] = name end
  end
  names[#names + 1] = "step"
  names[#names + 1] = "<file " .. arg[0]:match("[^/]+$") .. ">"
  for i, name in ipairs(names) do names[i] = ("%q"):format(name) end
  local stat = io.open("/proc/self/stat")
  local pid = stat:read("*n")
  stat:close()
  io.write(('{"TID":%d,"Calls":[%s]}\n'):format(pid, table.concat(names, ",")))
  io.stdout:flush()
  io.open(fifo)
  return 0
end
add({"wait"}, wait)
local r = step()
return r
