#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds, lints and tests clients/java in target/client-java with the module in target/release. What it needs comes from wherever this
# machine's mvn gets its packages. With `build` as its argument it only builds what the driver needs: target/client-java/redis-lock-driver.

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
# Two that run at once must not do the same work in the same place.
exec 9>"$out/.lock"
flock 9 2>/dev/null || true

maven() {
    # A test that hangs must not keep the others waiting for ever.
    (cd clients/java && timeout --kill-after=5 1200 mvn --batch-mode --quiet -Dout="$target" "$@") >"$out/why" 2>&1 && return
    cat "$out/why" >&2
    # What does not compile or pass is no reason to skip; what it needs may be impossible to have.
    grep -q "Could not \(resolve\|transfer\|find\)" "$out/why" || exit 1
    missing "its packages cannot be had"
}
now=$({ find clients/java -type f -not -path '*/target/*' | LC_ALL=C sort | xargs cksum; cat "$0"; java -version; } 2>&1 | cksum)
if [ "$now" != "$(cat "$out/.built" 2>/dev/null)" ]; then
    # -am: the module that it stands on, too.
    maven package dependency:copy-dependencies -pl driver -am -DskipTests -DincludeScope=runtime
    echo "$now" >"$out/.built"
fi
[ "${1:-}" != build ] || exit 0

# With more checks in the compiler than users get who build it: apart, as what is compiled already would not be checked.
target=$out/checked
# Three classes at a time, as most tests wait most of the time. What fails on a busy machine is tried again.
maven -Plint -DforkCount=3 -Dsurefire.rerunFailingTestsCount=2 verify
grep -h "^Tests run" "$target"/*/surefire-reports/*.txt
# What passed only when it was tried again.
grep -B 1 "<flakyFailure\|<flakyError" "$target"/*/surefire-reports/*.xml | cut -c 1-300 >&2
