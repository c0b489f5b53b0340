-- SPDX-License-Identifier: MIT
-- Releases a lock that was acquired with SET NX PX.
--
-- KEYS: the lock.
-- ARGV: the owner.
-- Reply: 1, or 0 if the owner does not hold the lock.
if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('del', KEYS[1])
end
return 0
