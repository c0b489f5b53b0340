#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/go with the module in target/release. What it needs comes from wherever this machine's go gets its
# modules. With `build` as its argument it only builds the driver: target/client-go/driver.

set -eu
cd "$(dirname -- "$0")/.."
skip() {
    echo "SKIPPED: clients/go: $1" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" = 1 ] && exit 1
    exit 0
}
command -v go >/dev/null || skip "there is no go"
out=$PWD/target/client-go
mkdir -p "$out"
export GOTOOLCHAIN=local
cd clients/go
export GOFLAGS="${GOFLAGS:-} -mod=readonly -buildvcs=false"
# What go-redis needs; or a Go that is too old.
go mod download 2>"$out/why" || skip "its modules cannot be had: $(tail -n 1 "$out/why")"
go build -o "$out/driver" ./driver
[ "${1:-}" = build ] && exit 0

bad=$(gofmt -l .)
[ -z "$bad" ] || { echo "gofmt: $bad" >&2; exit 1; }
go vet ./...
# A test that hangs must not keep the others waiting for ever.
exec timeout --kill-after=10 300 go test -race -timeout 240s ./...
