-- SPDX-License-Identifier: MIT
-- Sets the lease of a held lock anew, as the watchdog of a Redisson client does.
--
-- KEYS: the lock.
-- ARGV: the owner, the lease in milliseconds.
-- Reply: 1, or 0 if the owner holds nothing.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
