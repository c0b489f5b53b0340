#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the module, or the tools, for a target of Rust, and prints the folder of the files: build.sh TARGET [module|tools]
#
# * x86_64-unknown-linux-gnu, or aarch64-unknown-linux-gnu on such a machine, needs nothing more.
# * x86_64-unknown-linux-musl needs musl-tools. The module is for servers that use musl, as those in Alpine Linux do.
# * aarch64-unknown-linux-gnu needs gcc-aarch64-linux-gnu on another machine.
#
# The files contain no path of this machine, so that a build in another folder has the same bytes.

set -eu
cd "$(dirname -- "$0")/../.."
target=$1 what=${2:-module}
out=$PWD/target/packaging/build
host=$(rustc -vV | sed -n 's/^host: //p')
# An installed target needs no network.
if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; then
    rustup target add "$target" >&2
fi
cargo=${CARGO_HOME:-$HOME/.cargo}
separator=$(printf '\037')
# Flags in this variable may contain spaces.
flags="--remap-path-prefix=$PWD=/redis-lock$separator--remap-path-prefix=$cargo=/cargo"
export CFLAGS="-ffile-prefix-map=$PWD=/redis-lock -ffile-prefix-map=$cargo=/cargo"

case $target in
"$host") ;;
x86_64-unknown-linux-musl)
    # A server of Alpine Linux may have no libgcc, so the module contains Rust's own unwinder.
    libraries=$out/musl
    mkdir -p "$libraries"
    echo "INPUT($(rustc --print sysroot)/lib/rustlib/$target/lib/self-contained/libunwind.a)" >"$libraries/libgcc_s.so"
    flags="$flags$separator-Ctarget-feature=-crt-static$separator-L$libraries"
    export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=musl-gcc
    export BINDGEN_EXTRA_CLANG_ARGS="-nostdinc -isystem /usr/include/x86_64-linux-musl"
    ;;
aarch64-unknown-linux-gnu)
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    headers=$(aarch64-linux-gnu-gcc -print-file-name=include)
    export BINDGEN_EXTRA_CLANG_ARGS="-nostdinc -isystem $headers -isystem /usr/aarch64-linux-gnu/include"
    ;;
*)
    echo "no build for $target" >&2
    exit 64
    ;;
esac
export CARGO_ENCODED_RUSTFLAGS="$flags"
export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=true
case $what in
module)
    cargo build --locked --release --package redis-lock --target "$target" --target-dir "$out" >&2
    echo "$out/$target/release"
    ;;
tools)
    cargo build --locked --profile tools --package redis-lock-tools --target "$target" --target-dir "$out" >&2
    echo "$out/$target/tools"
    ;;
esac
