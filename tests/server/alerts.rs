// SPDX-License-Identifier: MIT

//! The alerts of `docs/monitoring`.

use std::path::Path;
use std::process::Command;

#[test]
fn promtool_accepts_the_alerts_and_they_fire_when_they_should() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let promtool = root.join("target/promtool");
    if !promtool.exists() {
        assert!(
            std::env::var_os("REQUIRE_ALL_SERVERS").is_none(),
            "no promtool, see tests/setup-promtool.sh"
        );
        eprintln!("SKIPPED: promtool is not there, see tests/setup-promtool.sh; the alerts are not checked");
        return;
    }
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]] {
        let output = Command::new(&promtool)
            .args(arguments)
            .current_dir(root.join("docs/monitoring"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("SUCCESS"), "{arguments:?}: {output:?}");
    }
}
