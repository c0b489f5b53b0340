// SPDX-License-Identifier: MIT

//! The alerts and the dashboard of `docs/monitoring`, checked by promtool and with data that `locktop` exports.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::programs::site::Site;
use crate::support::programs::tool;
use crate::support::{root, Flavor, Server};

crate::on_every_server!(every_field_reaches_prometheus);

fn docs() -> PathBuf {
    root().join("docs/monitoring")
}

/// A program that `tests/scripts/setup-monitoring.sh` has downloaded.
fn program(name: &str) -> Option<Command> {
    let program = root().join("target/monitoring").join(name);
    if !program.exists() {
        assert!(
            std::env::var_os("REQUIRE_ALL_SERVERS").is_none(),
            "no {name}, see tests/scripts/setup-monitoring.sh"
        );
        eprintln!("SKIPPED: {name} is missing, see tests/scripts/setup-monitoring.sh");
        return None;
    }
    Some(Command::new(program))
}

/// Runs promtool in a folder.
fn promtool(arguments: &[&str], dir: &Path) {
    let Some(mut promtool) = program("promtool") else { return };
    let output = promtool.args(arguments).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("SUCCESS"), "{arguments:?}: {output:?}");
}

#[test]
fn alert_rules_pass_promtool() {
    promtool(&["check", "rules", "rules.yml"], &docs());
    promtool(&["test", "rules", "rules_test.yml"], &docs());
}

/// promtool accepts a test file without any test of an alert.
#[test]
fn every_alert_has_tests() {
    let read = |name: &str| fs::read_to_string(docs().join(name)).unwrap();
    let (rules, tests) = (read("rules.yml"), read("rules_test.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 14, "{alerts:?}");
    for alert in alerts {
        for (expected, what) in [(" []\n", "does not fire"), ("\n", "fires")] {
            let evaluation = format!("alertname: {alert}\n        exp_alerts:{expected}");
            assert!(tests.contains(&evaluation), "no test in which {alert} {what}");
        }
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(docs().join("dashboard.json")).unwrap()).unwrap()
}

/// The dashboard's queries, with variables replaced as Grafana does for all servers.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let query = |target: &Value| target["expr"].as_str().unwrap().to_owned();
    let queries = targets.map(query);
    queries.map(|query| query.replace("$server", ".*").replace("$__rate_interval", "1m")).collect()
}

#[test]
fn dashboard_queries_are_valid() {
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, query) in queries().iter().enumerate() {
        rules += &format!("      - record: panel:query:{number}\n        expr: '{query}'\n");
    }
    assert!(!rules.contains('$'), "a variable that is not replaced: {rules}");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yml"), rules).unwrap();
    promtool(&["check", "rules", "rules.yml"], dir.path());
}

#[test]
fn dashboard_panels_do_not_overlap() {
    let dashboard = dashboard();
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "duplicate ID: {panel}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
        assert!(x + w <= 24 && w > 0 && h > 0, "{panel}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "overlap at {cell:?}: {panel}");
        }
    }
}

/// The fields that a query or a rule uses.
fn fields_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("lock_")).map(str::to_owned).collect()
}

fn every_field_reaches_prometheus(flavor: Flavor) {
    let server = Server::with_module(flavor, &[]);
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a PX 100000 WATCHDOG");
    client.call("ACL SETUSER metrics on >secret +info");
    let mut command = tool("locktop");
    command.args(["-u", &server.url().replace("//", "//metrics:secret@")]);
    let site = Site::start(command);
    let page = site.get("/metrics").body;
    let value = |field: &str| {
        let begin = format!("{field}{{server=\"127.0.0.1:{}\"}} ", server.port);
        page.lines().find_map(|line| line.strip_prefix(&begin)?.parse::<f64>().ok())
    };
    for line in client.call("INFO lock").lines() {
        if let Some((field, _)) = line.split_once(':') {
            assert!(value(field).is_some(), "{field} is not exported:\n{page}");
        }
    }
    let mut wanted = fields_in(&fs::read_to_string(docs().join("rules.yml")).unwrap());
    assert!(wanted.len() >= 10 && wanted.contains("lock_eviction"));
    wanted.extend(queries().iter().flat_map(|query| fields_in(query)));
    assert!(wanted.contains("lock_grants_at_once") && wanted.contains("lock_table_waiters"));
    for field in wanted {
        assert!(value(&field).is_some(), "{field} is not exported");
    }
    assert_eq!((value("lock_watchdogs"), value("lock_waiters")), (Some(1.0), Some(0.0)));
    promtool_accepts(&page);
    client.call("LOCK.RELEASE k a");
}

/// Checks that Prometheus can read a page of metrics.
fn promtool_accepts(page: &str) {
    let Some(mut promtool) = program("promtool") else { return };
    let mut child =
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    // Status 3 reports names that break conventions: INFO's own names are kept.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{output:?}");
}
