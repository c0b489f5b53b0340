#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/go with the module in target/release. Modules are downloaded from the proxy that this machine's go uses.
# With `build` as its argument, only builds the driver and the example: target/client-go/driver and target/client-go/counter.

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
# Skips if go-redis is not available, or if Go is too old for it.
go mod download 2>"$out/why" || { missing "its modules cannot be had"; exit; }
go build -o "$out/driver" ./driver
(cd ../../examples/go && go build -o "$out/counter" .)
[ "${1:-}" != build ] || exit 0

bad=$(gofmt -l . ../../examples/go)
[ -z "$bad" ] || { echo "gofmt: $bad" >&2; exit 1; }
# Installs a version of a program. Without the program, only its checks are skipped.
get() {
    [ -x "$1" ] || GOBIN=${1%/*} GOFLAGS=-mod=mod go install "$2" 2>"$out/why" || missing "$2 cannot be had"
}
staticcheck=$out/staticcheck-v0.8.2/staticcheck gotestsum=$out/gotestsum-v1.13.0/gotestsum
get "$staticcheck" honnef.co/go/tools/cmd/staticcheck@v0.8.2
get "$gotestsum" gotest.tools/gotestsum@v1.13.0
for module in . gocron bench ../../examples/go; do
    cd "$module"
    if go mod download 2>"$out/why"; then
        go vet ./...
        ! [ -x "$staticcheck" ] || "$staticcheck" ./...
        # A test that hangs must not block the other tests. Tests that fail on a busy machine are tried again.
        if [ -x "$gotestsum" ]; then
            set -- "$gotestsum" --format=pkgname --rerun-fails=2 --packages=./... --
        else
            set -- go test
        fi
        # Repeats all tests, as after a panic it is not known which tests have run.
        sh "$once_more" timeout --kill-after=5 900 "$@" -race -timeout 400s ./...
    else
        missing "what $module needs cannot be had"
    fi
    cd "$OLDPWD"
done
