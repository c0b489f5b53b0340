#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds, lints and tests clients/java in target/client-java with the module in target/release. Packages are downloaded from the
# repositories that this machine's mvn uses. With `build` as its argument, only builds the driver, in
# target/client-java/redis-lock-driver.

set -eu
cd "$(dirname -- "$0")/.."
out=$PWD/target/client-java target=$PWD/target/client-java
mkdir -p "$out"
missing() {
    echo "SKIPPED: clients/java: $1: $(tail -n 1 "$out/why")" >&2
    [ "${REQUIRE_ALL_SERVERS:-}" != 1 ] || exit 1
    exit 0
}
{ command -v javac && command -v mvn; } >"$out/why" 2>&1 || missing "there is no javac or mvn"
# Two runs at the same time must not work in the same folder.
exec 9>"$out/.lock"
flock 9 2>/dev/null || true

maven() {
    # A test that hangs must not block the other tests.
    (cd clients/java && timeout --kill-after=5 1200 mvn --batch-mode --quiet -Dout="$target" "$@") >"$out/why" 2>&1 && return
    cat "$out/why" >&2
    # Missing packages are a reason to skip. A failure to compile or to pass is not.
    grep -q "Could not \(resolve\|transfer\|find\)" "$out/why" || exit 1
    missing "its packages cannot be had"
}
now=$({ find clients/java -type f -not -path '*/target/*' | LC_ALL=C sort | xargs cksum; cat "$0"; java -version; } 2>&1 | cksum)
if [ "$now" != "$(cat "$out/.built" 2>/dev/null)" ]; then
    # -am: also builds the Maven modules that this one depends on.
    maven package dependency:copy-dependencies -pl driver -am -DskipTests -DincludeScope=runtime
    echo "$now" >"$out/.built"
fi
[ "${1:-}" != build ] || exit 0

# Enables more checks of the compiler than a user's build. In a folder of its own, as compiled classes would not be checked again.
target=$out/checked
# Runs three classes at a time, as most tests mostly wait. Tests that fail on a busy machine are tried again.
maven -Plint -DforkCount=3 -Dsurefire.rerunFailingTestsCount=2 verify
grep -h "^Tests run" "$target"/*/surefire-reports/*.txt
# Lists the tests that passed only when they were tried again.
grep -B 1 "<flakyFailure\|<flakyError" "$target"/*/surefire-reports/*.xml | cut -c 1-300 >&2
