-- Extends a lease if the route is still this connection's and live: 1, else 0.
-- KEYS: hash device -> route, sorted set device -> end of lease in ms. ARGV: device, boot, connection, lease in ms.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local route = redis.call('HGET', KEYS[1], ARGV[1])
if not route or string.match(route, '|(%d+|%d+)|%d+$') ~= ARGV[2] .. '|' .. ARGV[3] then
    return 0
end
if tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '0') <= now then
    return 0
end
local lease = tonumber(ARGV[4])
redis.call('ZADD', KEYS[2], string.format('%.0f', now + lease), ARGV[1])
for i = 1, 2 do
    if redis.call('PTTL', KEYS[i]) < lease then
        redis.call('PEXPIRE', KEYS[i], ARGV[4])
    end
end
return 1
