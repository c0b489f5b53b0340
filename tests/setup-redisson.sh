#!/bin/sh
# Puts Redisson, the Java client, into target/clients/redisson-<version>/, in each version that the tests talk to:
#
#   lib/      its jars, by Maven
#   classes/  the agent of tests/clients/redisson, compiled against them
#
# Does nothing for what is there and up to date. Without Java or Maven, all are skipped with a loud word; with
# REQUIRE_ALL_SERVERS=1 that is a failure.

set -eu
cd "$(dirname -- "$0")/.."
source=tests/clients/redisson
clients=$PWD/target/clients
skipped=0

skip() {
    echo "SKIPPED: $1: $2; tests with it will not run" >&2
    skipped=1
}

# What the jars and the classes depend on.
stamp() {
    { echo "$1 $2" && cat "$source/pom.xml" "$source"/src/*.java && javac -version 2>&1; } | cksum
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
        # What is there is of other sources.
        rm -rf "$place"
        skip "Redisson $version" "Maven does not get it"
        return
    fi
    # This is what is tested: if it does not compile, it is no matter of what is installed.
    javac --release 17 -nowarn -proc:none -encoding UTF-8 -cp "$tmp/new/lib/*" \
        -d "$tmp/new/classes" "$source"/src/*.java
    echo "$stamp" >"$tmp/new/stamp"
    rm -rf "$place"
    mv "$tmp/new" "$place"
    echo "redisson-$version: $(find "$place/lib" -name '*.jar' | wc -l) jars"
}

mkdir -p "$clients"
# Two that run at once must not do the same work in the same place.
exec 9>"$clients/.lock-redisson"
flock 9 2>/dev/null || true
tmp=$(mktemp -d "$clients/.new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

if ! java -version >/dev/null 2>&1 || ! javac -version >/dev/null 2>&1; then
    skip Redisson "no Java; install a JDK of version 17 or later"
elif ! command -v mvn >/dev/null; then
    skip Redisson "no Maven"
else
    # With the version of slf4j that each depends on.
    get 3.17.7 1.7.36
    get 3.27.2 2.0.9
    get 4.7.0 2.0.17
fi

if [ "$skipped" = 1 ] && [ "${REQUIRE_ALL_SERVERS:-}" = 1 ]; then
    echo "FAILED: REQUIRE_ALL_SERVERS is set, and Redisson is not there in all versions" >&2
    exit 1
fi
