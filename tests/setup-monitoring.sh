#!/bin/sh
# SPDX-License-Identifier: MIT
# Unpacks promtool and redis_exporter from Debian's packages into target/monitoring/, to test the files of docs/monitoring.
# Installs nothing, and does not need root. Without the packages, prints a line, and their tests are skipped; with
# REQUIRE_ALL_SERVERS=1, fails instead.

set -eu
cd "$(dirname -- "$0")/.."
there=$PWD/target/monitoring
[ ! -e "$there/redis_exporter" ] || exit 0
mkdir -p target
tmp=$(mktemp -d "$PWD/target/.monitoring.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
download() {
    (cd "$tmp" && apt-get -o APT::Sandbox::User=root download prometheus prometheus-redis-exporter) >"$tmp/log" 2>&1
}
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
# The lists of apt may be outdated or missing.
if download || { $as_root apt-get update >/dev/null 2>&1 && download; }; then
    for package in "$tmp"/*.deb; do
        dpkg-deb --extract "$package" "$tmp/root"
    done
    mkdir -p "$there"
    mv "$tmp/root/usr/bin/promtool" "$there/promtool"
    mv "$tmp/root/usr/bin/prometheus-redis-exporter" "$there/redis_exporter"
    "$there/promtool" --version 2>&1 | head -n 1
    exit 0
fi
tail -n 5 "$tmp/log" >&2
echo "SKIPPED: promtool and redis_exporter cannot be had; docs/monitoring is not tried" >&2
[ "${REQUIRE_ALL_SERVERS:-}" != 1 ]
