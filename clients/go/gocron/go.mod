// SPDX-License-Identifier: MIT

module github.com/redis-lock/redis-lock/clients/go/gocron

go 1.21.0

require (
	github.com/go-co-op/gocron/v2 v2.16.0
	github.com/google/uuid v1.6.0
	github.com/redis-lock/redis-lock/clients/go v0.1.0
	github.com/redis/go-redis/v9 v9.7.3
)

require (
	github.com/cespare/xxhash/v2 v2.2.0 // indirect
	github.com/dgryski/go-rendezvous v0.0.0-20200823014737-9f7001d12a5f // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
)

replace github.com/redis-lock/redis-lock/clients/go => ../
