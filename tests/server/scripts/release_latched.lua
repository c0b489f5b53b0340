-- SPDX-License-Identifier: MIT
-- Gives back one hold the way a Redisson client does since it has an unlock latch: the reply is stored, and the
-- same release that is sent again gets it again and changes nothing.
--
-- KEYS: the lock, its channel, the latch (a key of this one release).
-- ARGV: the owner, the lease in milliseconds of what is left, the TTL in milliseconds of the latch.
-- Reply: nil if the owner holds nothing, 0 if it has holds left, 1 if the lock is free.

local lock, channel, latch = KEYS[1], KEYS[2], KEYS[3]
local owner, lease, latch_ttl = ARGV[1], ARGV[2], ARGV[3]
local before = redis.call('GET', latch)
if before then
    return tonumber(before)
end
if redis.call('HEXISTS', lock, owner) == 0 then
    return nil
end
local free = 0
if redis.call('HINCRBY', lock, owner, -1) > 0 then
    redis.call('PEXPIRE', lock, lease)
else
    redis.call('DEL', lock)
    redis.call('PUBLISH', channel, '0')
    free = 1
end
redis.call('SET', latch, free, 'PX', latch_ttl)
return free
