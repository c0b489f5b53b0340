// SPDX-License-Identifier: MIT

//! Finished calls leave nothing in memory: every table of the module becomes empty (invariant 9).

use std::time::Duration;

use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(reentries_with_an_id_are_forgotten, every_table_becomes_empty);

/// Tables of `INFO lock` that are not empty, except those of constant size.
pub(super) fn full_tables(client: &mut Client) -> Vec<String> {
    let info = client.call("INFO lock");
    let tables = info.lines().filter(|line| line.starts_with("lock_table_"));
    assert!(tables.clone().count() >= 20, "{info}");
    let bounded = ["lock_table_granted_key_hints", "lock_table_sockets"];
    let full =
        tables.filter(|line| !line.ends_with(":0") && !bounded.iter().any(|name| line.starts_with(name)));
    full.map(str::to_owned).collect()
}

/// A regression test for requests with an ID that bound a hold. They were removed only when their table was exactly full,
/// and 4 MB of them stayed forever.
fn reentries_with_an_id_are_forgotten(flavor: Flavor) {
    const ROUNDS: usize = 4_000;
    let server = Server::with_module(flavor, &[]);
    let mut client = server.client();
    client.call("CONFIG SET lock.request-ttl 100");
    let round = |client: &mut Client, round: usize| {
        let mut calls: Vec<String> =
            (0..5).map(|n| format!("LOCK.ACQUIRE k a WATCHDOG ID {round}-{n}")).collect();
        calls.push("LOCK.RELEASE k a ALL".to_owned());
        calls.push(format!("LOCK.ACQUIRE e{} a EPHEMERAL ID {round}", round % 50));
        calls.push(format!("LOCK.RELEASE e{} a", round % 50));
        client.send_at_once(&calls.iter().map(String::as_str).collect::<Vec<_>>());
        calls.iter().for_each(|_| drop(client.recv()));
    };
    let memory = |client: &mut Client| client.info("memory", "used_memory").parse::<i64>().unwrap();
    (0..50).for_each(|n| round(&mut client, n));
    until("every table is empty", || full_tables(&mut client).is_empty());
    until("the keys are gone, too", || client.call("DBSIZE") == "0");
    let before = memory(&mut client);
    (0..ROUNDS).for_each(|n| round(&mut client, n));
    until("every table is empty", || full_tables(&mut client).is_empty());
    until("the keys are gone, too", || client.call("DBSIZE") == "0");
    // The server frees its own buffers and tables gradually.
    until("the memory is freed", || memory(&mut client) < before + 500_000);
}

/// Fills every kind of table, and waits until all are empty.
fn every_table_becomes_empty(flavor: Flavor) {
    let mut server = Server::with_module(flavor, &[]);
    let mut client = server.client();
    client.call("CONFIG SET lock.request-ttl 200");
    let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for (number, other) in clients.iter_mut().enumerate() {
        let key = number % 4;
        other.send(&format!(
            "LOCK.ACQUIRE k{key} o{number} PX 400 BLOCK 3000 FENCE WATCHDOG EPHEMERAL ID {number}"
        ));
        other.send(&format!("LOCK.ACQUIRE other o{number} SHARED PX 300 BLOCK 50 ID {number}"));
    }
    until("there are waiters", || client.info("lock", "lock_waiters") != "0");
    assert!(!full_tables(&mut client).is_empty());
    for number in 0..20 {
        client.call(&format!("LOCK.CANCEL k{} o{number} ID {number}", number % 4));
        if number % 7 == 0 {
            clients.pop().unwrap().close();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(clients);
    until("every table is empty", || full_tables(&mut client).is_empty());
    server.assert_healthy();
}
