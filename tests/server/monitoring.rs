// SPDX-License-Identifier: MIT

//! The alerts and the dashboard of `docs/monitoring`, checked by promtool and with data that redis_exporter reads from a
//! real server.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::programs::Run;
use crate::support::{Flavor, Server};

crate::on_every_server!(every_field_reaches_prometheus);

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/monitoring")
}

/// A program that `tests/scripts/setup-monitoring.sh` has downloaded.
fn program(name: &str) -> Option<Command> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/monitoring").join(name);
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
    queries.map(|query| query.replace("$instance", ".*").replace("$__rate_interval", "1m")).collect()
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
    let Some(mut exporter) = program("redis_exporter") else { return };
    let server = Server::with_module(flavor, &[]);
    let mut client = server.client();
    client.call("LOCK.ACQUIRE k a PX 100000 WATCHDOG");
    // If two tests get the same port, the slower exporter fails.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    exporter.args(["-redis.addr", &server.url(), "-web.listen-address", &address.to_string(), "-script"]);
    exporter.arg(docs().join("lock.lua"));
    let mut run = Run::spawn(exporter);
    let mut page = String::new();
    run.until("the exporter responds", || {
        let Ok(mut stream) = TcpStream::connect(address) else { return false };
        page.clear();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        stream.read_to_string(&mut page).is_ok() && page.contains("\nredis_script_values")
    });
    run.kill();
    let value = |field: &str| {
        let begin = format!("redis_script_values{{key=\"{field}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&begin)?.parse::<f64>().ok())
    };
    for line in client.call("INFO lock").lines() {
        if let Some((field, _)) = line.split_once(':') {
            assert!(value(field).is_some(), "{field} is not exported:\n{page}");
        }
    }
    let mut wanted = fields_in(&fs::read_to_string(docs().join("rules.yml")).unwrap());
    assert!(wanted.contains("lock_eviction"));
    wanted.extend(queries().iter().flat_map(|query| fields_in(query)));
    assert!(wanted.contains("lock_grants_at_once") && wanted.contains("lock_table_waiters"));
    for field in wanted {
        assert!(value(&field).is_some(), "{field} is not exported");
    }
    assert_eq!((value("lock_watchdogs"), value("lock_waiters")), (Some(1.0), Some(0.0)));
    client.call("LOCK.RELEASE k a");
}
