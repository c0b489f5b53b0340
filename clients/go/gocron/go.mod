// SPDX-License-Identifier: MIT

module redislock.example/lock/gocron

go 1.21

require redislock.example/lock v0.0.0

replace redislock.example/lock => ../
