-- SPDX-License-Identifier: MIT
-- Gives back one hold the way a Redisson client does that has no unlock latch: sent again, it counts again.
--
-- KEYS: the lock, its channel.
-- ARGV: the owner, the lease in milliseconds of what is left.
-- Reply: nil if the owner holds nothing, 0 if it has holds left, 1 if the lock is free.

local lock, channel, owner, lease = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if redis.call('HEXISTS', lock, owner) == 0 then
    return nil
end
if redis.call('HINCRBY', lock, owner, -1) > 0 then
    redis.call('PEXPIRE', lock, lease)
    return 0
end
redis.call('DEL', lock)
redis.call('PUBLISH', channel, '0')
return 1
