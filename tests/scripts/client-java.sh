#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds, lints and tests clients/java in target/client-java with the module in target/release. Dependencies come from the Maven
# repositories of this machine. With the argument `build`, it only builds the driver target/client-java/redis-lock-driver.

set -eu
cd "$(dirname -- "$0")/../.."
out=$PWD/target/client-java target=$PWD/target/client-java
mkdir -p "$out"
missing() {
    echo "SKIPPED: clients/java: $1: $(tail -n 1 "$out/why")" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
    exit 0
}
{ command -v javac && command -v mvn; } >"$out/why" 2>&1 || missing "javac or mvn is missing"
# Two runs at the same time must not build in the same place.
exec 9>"$out/.lock"
flock 9 2>/dev/null || true

maven() {
    # The time limit ends a test that hangs.
    (cd clients/java && timeout --kill-after=5 1200 mvn --batch-mode --quiet -Dout="$target" "$@") >"$out/why" 2>&1 && return
    cat "$out/why" >&2
    # A failed download is a reason to skip. Compile errors and test failures are not.
    grep -q "Could not \(resolve\|transfer\|find\)" "$out/why" || exit 1
    missing "its packages cannot be downloaded"
}
# The last step of compilation costs short programs more than it saves.
quick="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
now=$({ find clients/java -type f -not -path '*/target/*' | LC_ALL=C sort | xargs cksum; cat "$0"; java -version; } 2>&1 | cksum)
if [ "$now" != "$(cat "$out/.built" 2>/dev/null)" ]; then
    driver=$out/redis-lock-driver
    rm -rf "$driver/dependency" "$driver"/*.jar
    # -am builds the module that the driver depends on, too.
    maven package dependency:copy-dependencies -pl driver -am -DskipTests -DincludeScope=runtime
    # An archive of the classes halves the processor time of a start. This try reaches no server, but it loads most classes.
    { echo '{"n":1,"do":"try","as":"h","lock":"k"}' && sleep 1 && echo '{"n":2,"do":"close"}' && sleep 1; } |
        timeout --kill-after=5 60 java $quick -XX:ArchiveClassesAtExit="$driver/classes.jsa" \
            -cp "$driver/*:$driver/dependency/*" io.github.redislock.driver.Driver redis://127.0.0.1:1 >"$out/why" 2>&1 ||
        { cat "$out/why" >&2 && exit 1; }
    echo "$now" >"$out/.built"
fi
[ "${1:-}" != build ] || exit 0
# The tests do not write where others build.
exec 9>"$out/.lock-tests"
flock 9 2>/dev/null || true

# This build has more compiler checks than a user's build. A separate folder is needed: compiled files are not checked again.
target=$out/checked
export MAVEN_OPTS="$quick"
# Most tests are idle most of the time, so three classes run at once. See tests/retried.txt.
maven -Plint -DargLine="$quick" -DforkCount=3 -Dsurefire.rerunFailingTestsCount=2 verify
grep -A 5 "Flakes:" "$out/why" || true
# Virtual threads need a newer Java than the build. Without one, their tests are skipped.
for java in /usr/lib/jvm/*/bin/java; do
    case $("$java" --version 2>/dev/null) in "openjdk 2"[1-9]*) newer=$java ;; esac
done
[ -z "${newer:-}" ] || maven -Plint -DargLine="$quick" -Djvm="$newer" -Dsurefire.failIfNoSpecifiedTests=false \
    -pl core,redisson -Dtest='VirtualThreadsTest,NativeLocksTest#virtualThreadsWait' verify
grep -h "^Tests run" "$target"/*/surefire-reports/*.txt
exec timeout --kill-after=5 900 python3 tests/scripts/first_use.py java
