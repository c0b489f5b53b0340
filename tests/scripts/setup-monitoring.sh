#!/bin/sh
# SPDX-License-Identifier: MIT
# Extracts promtool from Debian's package into target/monitoring, for tests of docs/monitoring. Installs nothing, and needs no
# root. Without the package it prints SKIPPED; with REQUIRE_ALL_SERVERS=1 it fails.

set -eu
cd "$(dirname -- "$0")/../.."
there=$PWD/target/monitoring
[ ! -e "$there/promtool" ] || exit 0
mkdir -p target
tmp=$(mktemp -d "$PWD/target/.monitoring.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
download() {
    (cd "$tmp" && apt-get -o APT::Sandbox::User=root download prometheus) >"$tmp/log" 2>&1
}
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
# apt's lists of packages may be old or empty.
if download || { $as_root apt-get update >/dev/null 2>&1 && download; }; then
    for package in "$tmp"/*.deb; do
        dpkg-deb --extract "$package" "$tmp/root"
    done
    mkdir -p "$there"
    mv "$tmp/root/usr/bin/promtool" "$there/promtool"
    "$there/promtool" --version 2>&1 | head -n 1
    exit 0
fi
tail -n 5 "$tmp/log" >&2
echo "SKIPPED: promtool cannot be downloaded; docs/monitoring is not tested" >&2
[ "${REQUIRE_ALL_SERVERS:-}" != 1 ]
