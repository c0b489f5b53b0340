#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/go with the module in target/release. What it needs comes from wherever this machine's go gets its
# modules. With `build` as its argument it only builds the driver and the example: target/client-go/driver, target/client-go/counter.

set -eu
cd "$(dirname -- "$0")/.."
missing() {
    echo "SKIPPED: clients/go: $1: $(tail -n 1 "$out/why")" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
}
out=$PWD/target/client-go once_more=$PWD/tests/once_more.sh
mkdir -p "$out"
command -v go >"$out/why" || { missing "there is no go"; exit; }
export GOTOOLCHAIN=local
cd clients/go
export GOFLAGS="${GOFLAGS:-} -mod=readonly -buildvcs=false"
# What go-redis needs; or a Go that is too old.
go mod download 2>"$out/why" || { missing "its modules cannot be had"; exit; }
go build -o "$out/driver" ./driver
(cd ../../examples/go && go build -o "$out/counter" .)
[ "${1:-}" != build ] || exit 0

bad=$(gofmt -l . ../../examples/go)
[ -z "$bad" ] || { echo "gofmt: $bad" >&2; exit 1; }
check=honnef.co/go/tools/cmd/staticcheck
version=v0.8.2
GOBIN=$out/staticcheck-$version
if ! [ -x "$GOBIN/staticcheck" ] && ! GOBIN="$GOBIN" GOFLAGS=-mod=mod go install "$check@$version" 2>"$out/why"; then
    missing "staticcheck $version cannot be had"
fi
# A test that hangs must not keep the others waiting for ever.
for module in . gocron bench ../../examples/go; do
    cd "$module"
    if go mod download 2>"$out/why"; then
        go vet ./...
        ! [ -x "$GOBIN/staticcheck" ] || "$GOBIN/staticcheck" ./...
        sh "$once_more" timeout --kill-after=5 250 go test -race -timeout 240s ./...
    else
        missing "what $module needs cannot be had"
    fi
    cd "$OLDPWD"
done
