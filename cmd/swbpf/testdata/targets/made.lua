-- Makes functions, calls them and lets go of them, for some seconds of the time that it runs.
function helper(n)
	local total = 0
	for i = 1, n do
		total = total + i
	end
	return total
end

local function work()
	for k = 1, 50 do
		local f = loadstring("local function g" .. k .. "() for j = 1, 20 do local r = helper(3000) end end local r = g" .. k .. "() return r")
		local r = f()
		if k % 10 == 0 then
			collectgarbage()
		end
	end
end

while os.clock() < tonumber(arg[1]) do
	work()
end
