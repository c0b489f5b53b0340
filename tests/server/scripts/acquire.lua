-- SPDX-License-Identifier: MIT
-- Takes a lock the way a Redisson client does, or tells how long somebody else has it still.
--
-- KEYS: the lock.
-- ARGV: the owner, the lease in milliseconds.
-- Reply: nil if the owner has it, once more or for the first time; else the TTL of the lock in milliseconds.

local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2]
local own = redis.call('HEXISTS', lock, owner) == 1
if not own and redis.call('EXISTS', lock) == 1 then
    return redis.call('PTTL', lock)
end
redis.call('HINCRBY', lock, owner, 1)
redis.call('PEXPIRE', lock, lease)
return nil
