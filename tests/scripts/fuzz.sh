#!/bin/sh
# SPDX-License-Identifier: MIT
# Runs the fuzzers of tests/fuzz for SECONDS_EACH (60) each, with libFuzzer and the coverage of the module's compiler. Useful
# inputs are saved in target/fuzz/corpus, failing inputs in target/fuzz.

set -eu
cd "$(dirname "$0")/../.."

host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS="$coverage -Ccodegen-units=1 -Cdebug-assertions" cargo build --release --quiet \
    --manifest-path tests/fuzz/Cargo.toml --target-dir target/fuzz --target "$host"
for target in stored records histories; do
    mkdir -p "target/fuzz/corpus/$target"
    echo "== $target"
    "target/fuzz/$host/release/$target" -max_total_time="${SECONDS_EACH:-60}" -max_len=400 -print_final_stats=1 \
        -artifact_prefix=target/fuzz/ "target/fuzz/corpus/$target" 2>target/fuzz/"$target".log || {
        tail -n 200 target/fuzz/"$target".log >&2
        exit 1
    }
    grep -E '^#[0-9]+[[:space:]]+DONE|^stat::number_of_executed_units' target/fuzz/"$target".log
done
