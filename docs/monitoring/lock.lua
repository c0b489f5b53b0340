-- SPDX-License-Identifier: MIT
-- Script for redis_exporter -script: exports every field of INFO lock as redis_script_values{key="lock_…"}.
local values = {}
for name, value in string.gmatch(redis.call('INFO', 'lock'), '(lock_[%w_]+):(%-?%d+)') do
    values[#values + 1] = name
    values[#values + 1] = value
end
return values
