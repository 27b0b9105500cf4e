-- Registers a route; the later login wins.
-- KEYS: hash device -> route, sorted set device -> end of lease in ms. ARGV: device, gateway, boot, connection, lease in ms.
-- Answers the epoch and the route replaced, if its lease had not ended.
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = math.floor(micros / 1000)
local device, lease = ARGV[1], tonumber(ARGV[5])

local epoch, replaced = micros, ''
local previous = redis.call('HGET', KEYS[1], device)
if previous then
    local previous_epoch = tonumber(string.match(previous, '|(%d+)$') or '0')
    if previous_epoch + 1 > epoch then
        epoch = previous_epoch + 1
    end
    if tonumber(redis.call('ZSCORE', KEYS[2], device) or '0') > now then
        replaced = previous
    end
end
for _, ended in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
    redis.call('HDEL', KEYS[1], ended)
    redis.call('ZREM', KEYS[2], ended)
end
local epoch_text = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], device, ARGV[2] .. '|' .. ARGV[3] .. '|' .. ARGV[4] .. '|' .. epoch_text)
redis.call('ZADD', KEYS[2], string.format('%.0f', now + lease), device)
for i = 1, 2 do
    if redis.call('PTTL', KEYS[i]) < lease then
        redis.call('PEXPIRE', KEYS[i], ARGV[5])
    end
end
return {epoch_text, replaced}
