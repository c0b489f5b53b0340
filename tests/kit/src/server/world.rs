// SPDX-License-Identifier: MIT

//! A primary with the module, a replica without it, and an AOF. After each scenario, all three have the same keys (invariant 8
//! of `docs/design.md`).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;
use std::time::Instant;

use redis::Value;
use tempfile::TempDir;

use super::{Flavor, Server};
use crate::client::{show, Client, PATIENCE};

/// A primary and its replica. Dereferences to the primary.
pub struct World {
    pub primary: Server,
    pub replica: Server,
}

impl Deref for World {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.primary
    }
}

impl World {
    pub fn start(flavor: Flavor, args: &[&str]) -> World {
        let mut all = vec!["--appendonly", "yes"];
        all.extend(args);
        let primary = Server::with_module(flavor, &all);
        let replica = Server::start(flavor, &[]);
        replica.follow(&primary);
        World { primary, replica }
    }

    /// Panics unless primary, replica and replayed AOF have the same keys, and the module reports no internal error.
    pub fn verify(mut self) {
        self.primary.assert_healthy();
        self.replica.assert_healthy();
        let mut client = self.primary.client();
        assert_eq!(client.info("lock", "lock_internal_errors"), "0");
        let (primary, replica) = (self.primary.client(), self.replica.client());
        assert_same_keys("the replica", primary, replica);
        let replayed = replay(self.primary.flavor, self.primary.dir.path());
        assert_same_keys("the replayed AOF", self.primary.client(), replayed.client());
    }
}

/// Starts a server without the module on a copy of an AOF.
pub fn replay(flavor: Flavor, dir: &Path) -> Server {
    let copy = TempDir::new().unwrap();
    let aof = copy.path().join("appendonlydir");
    std::fs::create_dir(&aof).unwrap();
    for file in std::fs::read_dir(dir.join("appendonlydir")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), aof.join(file.file_name())).unwrap();
    }
    Server::start_in(flavor, copy, &["--appendonly", "yes"])
}

/// Returns every key of every database, with its content and its absolute expiry.
pub fn keys(client: &mut Client) -> BTreeMap<(usize, String), String> {
    let mut found = BTreeMap::new();
    for db in 0..16 {
        client.call(&format!("SELECT {db}"));
        let keys = match client.call_value("KEYS *") {
            Value::Array(keys) => keys,
            other => panic!("KEYS answered {}", show(&other)),
        };
        for key in keys {
            let Value::BulkString(name) = key else { panic!("not a name: {key:?}") };
            let kind = client.call_args(&[b"TYPE", &name]);
            let content = match kind.as_str() {
                "none" => continue,
                "hash" => fields(&client.call_args(&[b"HGETALL", &name])),
                "string" => client.call_args(&[b"GET", &name]),
                _ => client.call_args(&[b"DUMP", &name]),
            };
            let at = client.call_args(&[b"PEXPIRETIME", &name]);
            found.insert((db, show(&Value::BulkString(name))), format!("{kind} {content} until {at}"));
        }
    }
    client.call("SELECT 0");
    found
}

/// Sorts the fields of a hash: a large hash returns them in no defined order.
fn fields(hash: &str) -> String {
    let words: Vec<&str> = hash.trim_matches(['[', ']']).split(", ").collect();
    let mut pairs: Vec<String> = words.chunks(2).map(|pair| pair.join(", ")).collect();
    pairs.sort();
    pairs.join("; ")
}

/// Waits until a server has the same keys as its primary. Panics if it does not get them in time.
pub fn assert_same_keys(of: &str, mut primary: Client, mut other: Client) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (ours, theirs) = (keys(&mut primary), keys(&mut other));
        if ours == theirs {
            return;
        }
        assert!(Instant::now() < deadline, "{of} differs:\nprimary {ours:#?}\n{of} {theirs:#?}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
