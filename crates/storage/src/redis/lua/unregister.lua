-- Removes a route if it is still this connection's: 1, else 0.
-- KEYS: hash device -> route, sorted set device -> end of lease. ARGV: device, boot, connection.
local route = redis.call('HGET', KEYS[1], ARGV[1])
if not route or string.match(route, '|(%d+|%d+)|%d+$') ~= ARGV[2] .. '|' .. ARGV[3] then
    return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
