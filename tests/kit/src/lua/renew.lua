-- SPDX-License-Identifier: MIT
-- Sets the lease of a held lock again, as the watchdog of a Redisson client does.
--
-- KEYS: the lock.
-- ARGV: the lease in milliseconds, the owner.
-- Reply: 1, or 0 if the owner holds nothing.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then
    return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
