#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs other lock services in target/peers, for the benchmark `peers`:
#
# * etcd/etcd, etcd/load: the server and the load, built from the modules of benches/peers/etcd/go.mod
# * zookeeper/lib/, zookeeper/load.jar: the jars of the server and of Curator, from Maven, and the load
#
# Does nothing for a service that is up to date. Prints SKIPPED for a service that cannot be installed.

set -eu
cd "$(dirname -- "$0")/../.."
peers=$PWD/target/peers
race=tests/clients/redisson/src/Race.java

skip() {
    tail -n 5 "$tmp/log" >&2
    # The installed version is from other sources.
    rm -rf "${peers:?}/$1"
    echo "SKIPPED: $1: $2; it will not be measured" >&2
}

# Puts the new files of a service in place.
finish() {
    rm -rf "${peers:?}/$1"
    mv "$tmp/$1" "$peers/$1"
    echo "$2" >"$peers/$1/stamp"
    echo "$1: installed"
}

is_current() {
    [ "$(cat "$peers/$1/stamp" 2>/dev/null)" = "$2" ]
}

etcd() {
    command -v go >"$tmp/log" || { skip etcd "no Go"; return; }
    stamp=$({ cat benches/peers/etcd/* "$0" && go version; } | cksum)
    ! is_current etcd "$stamp" || return 0
    export GOTOOLCHAIN=local GOFLAGS="${GOFLAGS:-} -mod=readonly -buildvcs=false"
    # Also fails if this Go is too old for etcd.
    (cd benches/peers/etcd && go mod download) 2>"$tmp/log" || { skip etcd "its modules cannot be downloaded"; return; }
    mkdir "$tmp/etcd"
    (cd benches/peers/etcd && go build -o "$tmp/etcd/etcd" go.etcd.io/etcd/server/v3 && go build -o "$tmp/etcd/load" .)
    finish etcd "$stamp"
}

zookeeper() {
    { command -v java && command -v javac && command -v mvn; } >"$tmp/log" || { skip zookeeper "no JDK or no Maven"; return; }
    stamp=$({ cat benches/peers/zookeeper/pom.xml benches/peers/zookeeper/src/* "$race" "$0" && java -version 2>&1; } | cksum)
    ! is_current zookeeper "$stamp" || return 0
    mkdir "$tmp/zookeeper" "$tmp/classes"
    if ! mvn -q -B -f benches/peers/zookeeper/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
        "-DoutputDirectory=$tmp/zookeeper/lib" >"$tmp/log" 2>&1; then
        skip zookeeper "Maven cannot download it"
        return
    fi
    javac --release 17 -nowarn -proc:none -encoding UTF-8 -cp "$tmp/zookeeper/lib/*" -d "$tmp/classes" \
        "$race" benches/peers/zookeeper/src/*.java
    jar --create --file "$tmp/zookeeper/load.jar" -C "$tmp/classes" .
    finish zookeeper "$stamp"
}

mkdir -p "$peers"
# Two runs at the same time must not build in the same place.
exec 9>"$peers/.lock"
flock 9 2>/dev/null || true
tmp=$(mktemp -d "$peers/.new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
etcd
zookeeper
