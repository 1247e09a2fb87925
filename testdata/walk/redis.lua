-- What has called the server back; it goes on until the server is killed.
local function inner(n)
  local sum = 0
  for _ = 1, n do sum = sum + redis.call("INCR", "key") % 7 end
  return sum
end

local function outer()
  local sum = 0
  while true do sum = sum + inner(1000) end
  return sum
end

local sum = outer()
return sum
