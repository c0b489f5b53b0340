#!/bin/sh
# SPDX-License-Identifier: MIT
# Puts promtool into target/promtool/, out of Debian's package, to check the alerts in docs/monitoring. Nothing is installed, and root
# is not needed. Without it, its test is skipped with a loud word; with REQUIRE_ALL_SERVERS=1 that is a failure.

set -eu
cd "$(dirname -- "$0")/.."
promtool=$PWD/target/promtool
! "$promtool" --version >/dev/null 2>&1 || exit 0
mkdir -p target
tmp=$(mktemp -d "$PWD/target/.promtool.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
download() {
    (cd "$tmp" && apt-get -o APT::Sandbox::User=root download prometheus) >"$tmp/log" 2>&1
}
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
# What apt knows may be too old, or nothing.
if download || { $as_root apt-get update >/dev/null 2>&1 && download; }; then
    dpkg-deb --extract "$tmp"/prometheus_*.deb "$tmp/root"
    mv "$tmp/root/usr/bin/promtool" "$promtool"
    "$promtool" --version 2>&1 | head -n 1
    exit 0
fi
tail -n 5 "$tmp/log" >&2
echo "SKIPPED: promtool cannot be had; the alerts are not checked" >&2
[ "${REQUIRE_ALL_SERVERS:-}" != 1 ]
