#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs Redisson, the Java client, in target/clients/redisson-<version>/, in each version that the tests use:
#
# * lib/: the jars, from Maven
# * classes/: the agent of tests/clients/redisson, compiled with these jars
# * agent.jar: the classes
# * agent.jsa: Java's archive of all loaded classes, which halves the processor time of a test
#
# Does nothing for an installed version that is up to date. Without Java or Maven it prints SKIPPED; with REQUIRE_ALL_SERVERS=1
# it fails.

set -eu
cd "$(dirname -- "$0")/../.."
source=tests/clients/redisson
clients=$PWD/target/clients
skipped=0

skip() {
    echo "SKIPPED: $1: $2; tests with it will not run" >&2
    skipped=1
}

# A checksum of everything that the jars and classes depend on.
stamp() {
    { echo "$1 $2" && cat "$source/pom.xml" "$source"/src/*.java "$0" && java -version 2>&1; } | cksum
}

agent() {
    place=$1
    shift
    java -XX:+UseSerialGC "$@" -cp "$place/agent.jar:$place/lib/*" Agent
}

# Starts a server on a free port. Sets `port` and `server`, its process ID.
start_server() {
    for _ in 1 2 3 4 5; do
        port=$(shuf -i 20000-30000 -n 1)
        redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$tmp" >"$tmp/server.log" 2>&1 &
        server=$!
        for _ in $(seq 100); do
            if redis-cli -p "$port" INFO server 2>/dev/null | grep -q "^process_id:$server\b"; then
                return 0
            fi
            kill -0 "$server" 2>/dev/null || break
            sleep 0.1
        done
        kill "$server" 2>/dev/null || true
    done
    server=
    return 1
}

remember_classes() {
    start_server || return 1
    rm -f "$tmp/answers"
    mkfifo "$tmp/requests"
    agent "$1" -XX:ArchiveClassesAtExit="$1/agent.jsa" <"$tmp/requests" >"$tmp/answers" 2>"$tmp/log" &
    exec 8>"$tmp/requests"
    rm "$tmp/requests"
    echo "1 a main connect single redis://127.0.0.1:$port" >&8
    echo "2 a main lock plain k" >&8
    echo "3 a main unlock plain k" >&8
    for _ in $(seq 600); do
        ! grep -q '^3 ' "$tmp/answers" || break
        sleep 0.1
    done
    exec 8>&-
    wait $! || true
    kill "$server"
    wait "$server" || true
    server=
    # Java must accept the archive.
    if ! grep -q '^3 ok' "$tmp/answers" ||
        ! agent "$1" -Xshare:on -XX:SharedArchiveFile="$1/agent.jsa" </dev/null >"$tmp/log" 2>&1; then
        rm -f "$1/agent.jsa"
        return 1
    fi
}

get() {
    version=$1
    slf4j=$2
    place=$clients/redisson-$version
    stamp=$(stamp "$version" "$slf4j")
    [ "$(cat "$place/stamp" 2>/dev/null)" != "$stamp" ] || return 0
    rm -rf "$tmp/new"
    mkdir -p "$tmp/new/lib" "$tmp/new/classes"
    if ! mvn -q -B -f "$source/pom.xml" dependency:copy-dependencies "-Dredisson.version=$version" \
        "-Dslf4j.version=$slf4j" -DincludeScope=runtime "-DoutputDirectory=$tmp/new/lib" >"$tmp/log" 2>&1; then
        head -n 5 "$tmp/log" >&2
        # The installed version is from other sources.
        rm -rf "$place"
        skip "Redisson $version" "Maven cannot download it"
        return
    fi
    # A compile error of the agent is a failure, not a reason to skip.
    javac --release 17 -nowarn -proc:none -encoding UTF-8 -cp "$tmp/new/lib/*" \
        -d "$tmp/new/classes" "$source"/src/*.java
    (cd "$tmp/new/classes" && jar --create --file ../agent.jar .)
    rm -rf "$place"
    mv "$tmp/new" "$place"
    # The archive is valid only for the final paths.
    remember_classes "$place" || echo "redisson-$version: without agent.jsa; the tests will take longer" >&2
    echo "$stamp" >"$place/stamp"
    echo "redisson-$version: $(find "$place/lib" -name '*.jar' | wc -l) jars"
}

mkdir -p "$clients"
# Two runs at the same time must not build in the same place.
exec 9>"$clients/.lock-redisson"
flock 9 2>/dev/null || true
tmp=$(mktemp -d "$clients/.new.XXXXXX")
server=
trap 'rm -rf "$tmp"; [ -z "$server" ] || kill "$server"' EXIT
trap 'exit 1' HUP INT TERM

if ! java -version >/dev/null 2>&1 || ! javac -version >/dev/null 2>&1; then
    skip Redisson "no Java; install a JDK of version 17 or later"
elif ! command -v mvn >/dev/null; then
    skip Redisson "no Maven"
else
    # The second version is that of slf4j, a dependency.
    get 3.17.7 1.7.36
    get 3.27.2 2.0.9
    get 4.7.0 2.0.17
fi

if [ "$skipped" = 1 ] && [ "${REQUIRE_ALL_SERVERS:-}" = 1 ]; then
    echo "FAILED: REQUIRE_ALL_SERVERS is set, and a version of Redisson is missing" >&2
    exit 1
fi
