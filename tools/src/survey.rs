// SPDX-License-Identifier: MIT

//! Calls to all primaries of a cluster that do not depend on each other.

use std::thread;
use std::time::Duration;

use redis::{
    Client, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, RedisError, RedisResult, TlsCertificates,
    Value,
};

use crate::place::{client, ServerOptions};

/// The time to connect, and the time for a reply. A survey takes up to four times as long; Prometheus waits for 10 seconds.
const STEP_TIMEOUT: Duration = Duration::from_millis(1500);

/// The nodes of a cluster.
pub(crate) struct Survey {
    certificates: Option<TlsCertificates>,
    /// The nodes of the command line.
    seeds: Vec<ConnectionInfo>,
    /// The primaries that were found last.
    primaries: Vec<ConnectionInfo>,
}

impl Survey {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>, options: &ServerOptions) -> Result<Survey, String> {
        Ok(Survey { certificates: options.certificates()?, seeds, primaries: Vec::new() })
    }

    /// Looks up the primaries, and calls all of them at the same time, each over a connection of its own. Returns the reply of
    /// each with its address.
    pub(crate) fn call_each<T: FromRedisValue + Send>(
        &mut self,
        command: &Cmd,
    ) -> RedisResult<Vec<(String, RedisResult<T>)>> {
        let mut known = self.seeds.clone();
        let found_last =
            self.primaries.iter().filter(|node| !self.seeds.iter().any(|seed| is_same(seed, node)));
        known.extend(found_last.cloned());
        let slots = self.call::<Vec<Vec<Value>>>(&known, redis::cmd("CLUSTER").arg("SLOTS"));
        let found = known.iter().zip(slots).map(|(asked, slots)| Ok(primaries(asked, slots?)));
        self.primaries = first_success(found)?;
        let mut replies = self.call(&self.primaries, command);
        if replies.iter().all(Result::is_err) {
            if let Some(Err(error)) = replies.pop() {
                return Err(error);
            }
        }
        let addresses = self.primaries.iter().map(|node| node.addr().to_string());
        Ok(addresses.zip(replies).collect())
    }

    /// The reply of each node.
    fn call<T: FromRedisValue + Send>(&self, nodes: &[ConnectionInfo], command: &Cmd) -> Vec<RedisResult<T>> {
        let call = |node: &ConnectionInfo| {
            let client = client(node.clone(), self.certificates.as_ref());
            ask(&client.map_err(std::io::Error::other)?, command)
        };
        thread::scope(|scope| {
            let calls: Vec<_> = nodes.iter().map(|node| scope.spawn(move || call(node))).collect();
            let failed = |_| Err(std::io::Error::other("locktop has a defect").into());
            calls.into_iter().map(|call| call.join().unwrap_or_else(failed)).collect()
        })
    }
}

fn ask<T: FromRedisValue>(client: &Client, command: &Cmd) -> RedisResult<T> {
    let mut connection = client.get_connection_with_timeout(STEP_TIMEOUT)?;
    connection.set_read_timeout(Some(STEP_TIMEOUT))?;
    command.query(&mut connection)
}

/// The first success, or the last error.
fn first_success<T>(results: impl Iterator<Item = RedisResult<Vec<T>>>) -> RedisResult<Vec<T>> {
    let mut last: RedisError = std::io::Error::other("no node of the cluster is known").into();
    for result in results {
        match result {
            Ok(found) if found.is_empty() => {}
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The primaries in a reply to `CLUSTER SLOTS`. A primary without a known address is the node that was asked.
fn primaries(asked: &ConnectionInfo, slots: Vec<Vec<Value>>) -> Vec<ConnectionInfo> {
    let mut found: Vec<ConnectionInfo> = Vec::new();
    for primary in slots.into_iter().filter_map(|range| range.into_iter().nth(2)) {
        let Value::Array(mut parts) = primary else { continue };
        parts.truncate(2);
        let Ok((host, port)) = <(Option<String>, u16)>::from_redis_value(Value::Array(parts)) else {
            continue;
        };
        let node = at(asked, host.filter(|host| !host.is_empty()), port);
        if !found.iter().any(|known| is_same(known, &node)) {
            found.push(node);
        }
    }
    found
}

fn is_same(one: &ConnectionInfo, other: &ConnectionInfo) -> bool {
    one.addr() == other.addr()
}

/// A node with the settings of another one.
fn at(node: &ConnectionInfo, host: Option<String>, port: u16) -> ConnectionInfo {
    let mut address = node.addr().clone();
    match &mut address {
        ConnectionAddr::Tcp(of_node, port_of_node)
        | ConnectionAddr::TcpTls { host: of_node, port: port_of_node, .. } => {
            if let Some(host) = host {
                *of_node = host;
            }
            *port_of_node = port;
        }
        _ => {}
    }
    node.clone().set_addr(address)
}
