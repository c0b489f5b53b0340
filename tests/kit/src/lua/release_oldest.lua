-- SPDX-License-Identifier: MIT
-- Releases one hold as the oldest Redisson clients do: releasing a free lock publishes again that it is free. A retry releases
-- a second hold.
--
-- KEYS: the lock, its channel.
-- ARGV: the lease in milliseconds of the remaining holds, the owner.
-- Reply: nil if another owner holds the lock, 0 if the owner still has holds, 1 if the lock is free or was free before.
local lock, channel, lease, owner = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local there = redis.call('EXISTS', lock) == 1
if there then
    if redis.call('HEXISTS', lock, owner) == 0 then
        return nil
    end
    if redis.call('HINCRBY', lock, owner, -1) > 0 then
        redis.call('PEXPIRE', lock, lease)
        return 0
    end
    redis.call('DEL', lock)
end
redis.call('PUBLISH', channel, '0')
return 1
