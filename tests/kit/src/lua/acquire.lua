-- SPDX-License-Identifier: MIT
-- Acquires a lock with the calls that Redisson's script makes.
--
-- KEYS: the lock.
-- ARGV: the lease in milliseconds, the owner.
-- Reply: nil if the owner now holds the lock, for the first time or once more; else the TTL of the lock in milliseconds.
local lock, lease, owner = KEYS[1], ARGV[1], ARGV[2]
if redis.call('exists', lock) == 1 and redis.call('hexists', lock, owner) == 0 then
    return redis.call('pttl', lock)
end
redis.call('hincrby', lock, owner, 1)
redis.call('pexpire', lock, lease)
return nil
