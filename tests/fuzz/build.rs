// SPDX-License-Identifier: MIT

//! The core's model is there for tests only, and is needed here, too.

fn main() {
    println!("cargo:rustc-cfg=test");
    println!("cargo:rustc-cfg=fuzzing");
    println!("cargo:rustc-check-cfg=cfg(fuzzing)");
}
