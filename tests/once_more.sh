#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs a command; once more if it fails, and says so: tests with patiences of some 100 ms may fail on a busy machine.

"$@" || {
    echo "FAILED on a busy machine, maybe; once more: $*" >&2
    "$@"
}
