#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a test suite: retry_listed.sh NAME COMMAND…. Runs it again after a failure if NAME is in tests/retried.txt.

set -eu
list=$(dirname -- "$0")/retried.txt
name=$1
shift
"$@" && exit
grep -q "^$name  " "$list" || exit 1
echo "AGAIN: $name failed, and is listed in tests/retried.txt" >&2
"$@"
