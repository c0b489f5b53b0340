#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds what a package in clients/ publishes, in target/dist/clients: client.sh python|node|java|rust|go. A Go module is
# published as a tag of this repository, so only its files are checked.
#
# `make package-python` and so on call it. It needs the build tools of the language, and its package registry.

set -eu
cd "$(dirname -- "$0")/../.."
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
language=$1
root=$PWD dist=$PWD/target/dist/clients tools=$PWD/target/packaging/$1
mkdir -p "$dist" "$tools"
# Two builds at the same time must not write in the same place.
exec 9>"$tools/.lock"
flock 9 2>/dev/null || true
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
umask 022

# The published files of a package are its own and the license.
copy() {
    cp LICENSE "$tmp"
    for file; do
        cp -R "clients/$language/$file" "$tmp"
    done
    find "$tmp" -name __pycache__ -o -name '*.egg-info' | xargs rm -rf
}

case $language in
python)
    [ -x "$tools/bin/twine" ] || {
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0
    }
    copy pyproject.toml README.md src
    rm -f "$dist"/redis_lock_client-*
    "$tools/bin/python" -m build --outdir "$dist" "$tmp" >"$tools/log" 2>&1 || { cat "$tools/log" >&2; exit 1; }
    "$tools/bin/twine" check --strict "$dist"/redis_lock_client-*
    ls "$dist/redis_lock_client-$version-py3-none-any.whl" "$dist/redis_lock_client-$version.tar.gz"
    ;;
*)
    echo "usage: client.sh python|node|java|rust|go" >&2
    exit 2
    ;;
esac
