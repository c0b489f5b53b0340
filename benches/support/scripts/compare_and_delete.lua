-- SPDX-License-Identifier: MIT
-- Gives a lock back that was taken with SET NX PX.
-- KEYS: the lock. ARGV: the owner.
if redis.call('get', KEYS[1]) == ARGV[1] then
    return redis.call('del', KEYS[1])
end
return 0
