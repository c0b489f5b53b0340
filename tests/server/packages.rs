// SPDX-License-Identifier: MIT

//! What `make dist` makes, installed.

use std::process::Command;

/// `tests/packages.sh` says what is tried, and skips it where that cannot be done.
#[test]
fn long_the_packages_install_and_the_server_starts_with_them() {
    let mut script = Command::new("sh");
    script.arg("tests/packages.sh").current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("CARGO_TARGET_DIR");
    assert!(script.status().unwrap().success());
}
