-- The live routes of a user: device and route in turn.
-- KEYS: hash device -> route, sorted set device -> end of lease in ms.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local found = {}
for _, device in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', now), '+inf')) do
    local route = redis.call('HGET', KEYS[1], device)
    if route then
        found[#found + 1] = device
        found[#found + 1] = route
    end
end
return found
