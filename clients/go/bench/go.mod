// SPDX-License-Identifier: MIT

module redislock.example/lock/bench

go 1.21

require (
	github.com/go-redsync/redsync/v4 v4.13.0
	github.com/redis/go-redis/v9 v9.7.3
	redislock.example/lock v0.0.0
)

replace redislock.example/lock => ../
