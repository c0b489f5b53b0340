#!/bin/sh
# SPDX-License-Identifier: MIT
# Lints and tests clients/go with the module in target/release. Dependencies come from the Go proxy of this machine. With the
# argument `build`, it only builds the driver target/client-go/driver and the example target/client-go/counter.

set -eu
cd "$(dirname -- "$0")/../.."
missing() {
    echo "SKIPPED: clients/go: $1: $(tail -n 1 "$out/why")" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
}
out=$PWD/target/client-go
mkdir -p "$out"
command -v go >"$out/why" || { missing "go is missing"; exit; }
export GOTOOLCHAIN=local
cd clients/go
export GOFLAGS="${GOFLAGS:-} -mod=readonly -buildvcs=false"
# Also fails if this Go is too old for go-redis.
go mod download 2>"$out/why" || { missing "its modules cannot be downloaded"; exit; }
go build -o "$out/driver" ./driver
(cd ../../examples/go && go build -o "$out/counter" .)
[ "${1:-}" != build ] || exit 0

bad=$(gofmt -l . ../../examples/go)
[ -z "$bad" ] || { echo "gofmt: $bad" >&2; exit 1; }
# Installs a version of a program. The script continues without it.
get() {
    [ -x "$1" ] || GOBIN=${1%/*} GOFLAGS=-mod=mod go install "$2" 2>"$out/why" || missing "$2 cannot be installed"
}
staticcheck=$out/staticcheck-v0.8.2/staticcheck gotestsum=$out/gotestsum-v1.13.0/gotestsum
get "$staticcheck" honnef.co/go/tools/cmd/staticcheck@v0.8.2
get "$gotestsum" gotest.tools/gotestsum@v1.13.0
for module in . gocron bench ../../examples/go; do
    cd "$module"
    if go mod download 2>"$out/why"; then
        go vet ./...
        ! [ -x "$staticcheck" ] || "$staticcheck" ./...
        if [ -x "$gotestsum" ]; then
            # See tests/retried.txt.
            set -- "$gotestsum" --format=pkgname --rerun-fails=2 --rerun-fails-max-failures=2 --packages=./... --
        else
            set -- go test ./...
        fi
        # The time limit ends a test that hangs.
        timeout --kill-after=5 900 "$@" -race -timeout 400s
    else
        missing "the modules of $module cannot be downloaded"
    fi
    cd "$OLDPWD"
done
cd ../..
exec timeout --kill-after=5 900 python3 tests/scripts/first_use.py go
