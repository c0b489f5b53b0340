-- SPDX-License-Identifier: MIT
-- Gives back one hold the way the oldest Redisson clients do: a lock that is free already is released and
-- published once more. Sent again, it counts again.
--
-- KEYS: the lock, its channel.
-- ARGV: the owner, the lease in milliseconds of what is left.
-- Reply: nil if somebody else holds the lock, 0 if the owner has holds left, 1 if the lock is free, also if it
-- was free before.

local lock, channel, owner, lease = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
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
