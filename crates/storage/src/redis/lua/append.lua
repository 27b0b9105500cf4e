-- Appends events to a user's hot window, so that it stays contiguous [lo..hi].
-- KEYS: stream, hash of lo and hi. ARGV: most events, seconds to live, then seq and event in turn, ascending.
-- Numbers are exact up to 2^53.
local hi = 0
if redis.call('EXISTS', KEYS[1]) == 1 then
    hi = tonumber(redis.call('HGET', KEYS[2], 'hi') or '0')
end
local changed = false
for i = 3, #ARGV, 2 do
    local seq = tonumber(ARGV[i])
    if seq > hi then
        if seq ~= hi + 1 or hi == 0 then
            -- A hole, or a window that was lost in part: begin anew.
            redis.call('DEL', KEYS[1])
        end
        redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[i] .. '-0', 'e', ARGV[i + 1])
        hi = seq
        changed = true
    end
end
if changed then
    local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][1]
    redis.call('HSET', KEYS[2], 'lo', string.match(first, '^%d+'), 'hi', string.format('%.0f', hi))
    redis.call('EXPIRE', KEYS[1], ARGV[2])
    redis.call('EXPIRE', KEYS[2], ARGV[2])
end
return string.format('%.0f', hi)
