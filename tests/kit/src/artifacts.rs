// SPDX-License-Identifier: MIT

//! The files of this workspace that tests and benchmarks load or run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Returns the file of the module: that of `REDIS_LOCK_MODULE`, or by default one that this function builds in release mode.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| match std::env::var_os("REDIS_LOCK_MODULE") {
        // Each server and each package's tests run in a folder of their own, so the path must be absolute.
        Some(path) => {
            let path = root().join(path);
            fs::canonicalize(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        }
        None => build("release", &["--lib"]).join("libredis_lock.so"),
    })
}

/// Returns a module of `tests/modules`, in release mode: `empty` or `floor`.
pub fn test_module(name: &str) -> PathBuf {
    let release = build("release", &["--package", "redis-lock-test-modules", "--example", name]);
    release.join(format!("examples/lib{name}.so"))
}

/// Returns the file of an example in the profile of the calling test.
pub fn example(file: &str) -> PathBuf {
    static EXAMPLES: OnceLock<PathBuf> = OnceLock::new();
    EXAMPLES
        .get_or_init(|| {
            built_or_named("REDIS_LOCK_EXAMPLES", &["--workspace", "--examples"]).join("examples")
        })
        .join(file)
}

/// Returns the file of `lockrun`, `locktop` or another binary of the tools, in the profile of the calling test.
pub fn tool(name: &str) -> PathBuf {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    TOOLS.get_or_init(|| built_or_named("REDIS_LOCK_TOOLS", &["--package", "redis-lock-tools"])).join(name)
}

/// Returns the folder that an environment variable names. Without it, builds the targets in the profile of the calling test.
/// `cargo test` builds the examples, but `cargo test --test server` does not.
fn built_or_named(variable: &str, targets: &[&str]) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return PathBuf::from(path);
    }
    let profile = profile_dir().file_name().unwrap().to_owned();
    match profile.to_str().unwrap() {
        "debug" => build("dev", targets),
        profile => build(profile, targets),
    }
}

/// Builds targets, and returns their folder.
fn build(profile: &str, targets: &[&str]) -> PathBuf {
    let target = profile_dir().parent().unwrap().to_owned();
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--profile", profile, "--target-dir"])
        .arg(&target)
        .args(targets)
        .current_dir(root())
        .status();
    assert!(built.is_ok_and(|status| status.success()), "{targets:?} does not build");
    target.join(if profile == "dev" { "debug" } else { profile })
}

/// Returns the folder `target/<profile>` of the running program.
fn profile_dir() -> PathBuf {
    // target/debug/deps/server-0123456789abcdef
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}
