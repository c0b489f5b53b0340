-- SPDX-License-Identifier: MIT
-- Ends every hold on a lock, as the forced unlock of a Redisson client does.
--
-- KEYS: the lock, its channel.
-- Reply: 1, or 0 if the lock was free.
local lost = redis.call('DEL', KEYS[1])
if lost == 1 then
    redis.call('PUBLISH', KEYS[2], '0')
end
return lost
