// SPDX-License-Identifier: MIT

//! Enables the core's model, which exists in test builds only.

fn main() {
    println!("cargo:rustc-cfg=test");
    println!("cargo:rustc-cfg=fuzzing");
    println!("cargo:rustc-check-cfg=cfg(fuzzing)");
}
