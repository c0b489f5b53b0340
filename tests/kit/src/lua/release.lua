-- SPDX-License-Identifier: MIT
-- Releases one hold with the calls that the script of Redisson 3.17 makes. Without a latch, a retry releases a second hold.
--
-- KEYS: the lock, its channel.
-- ARGV: the lease in milliseconds of the remaining holds, the owner.
-- Reply: nil if the owner holds nothing, 0 if the owner still has holds, 1 if the lock is free.
local lock, channel, lease, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if redis.call('hexists', lock, owner) == 0 then
    return nil
end
if redis.call('hincrby', lock, owner, -1) > 0 then
    redis.call('pexpire', lock, lease)
    return 0
end
redis.call('del', lock)
redis.call('publish', channel, '0')
return 1
