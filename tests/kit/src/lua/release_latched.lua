-- SPDX-License-Identifier: MIT
-- Releases one hold with the calls that the script of Redisson 3.27 makes. The latch stores the reply: a retry gets that reply
-- and changes nothing.
--
-- KEYS: the lock, its channel, the latch (a key of this one release).
-- ARGV: the lease in milliseconds of the remaining holds, the owner, the TTL in milliseconds of the latch.
-- Reply: nil if the owner holds nothing, 0 if the owner still has holds, 1 if the lock is free.
local lock, channel, latch = KEYS[1], KEYS[2], KEYS[3]
local lease, owner, latch_ttl = ARGV[1], ARGV[2], ARGV[3]
local before = redis.call('get', latch)
if before then
    return tonumber(before)
end
if redis.call('hexists', lock, owner) == 0 then
    return nil
end
local free = 0
if redis.call('hincrby', lock, owner, -1) > 0 then
    redis.call('pexpire', lock, lease)
else
    redis.call('del', lock)
    redis.call('publish', channel, '0')
    free = 1
end
redis.call('set', latch, free, 'px', latch_ttl)
return free
