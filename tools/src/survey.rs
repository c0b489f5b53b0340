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
        self.primaries = self.find_primaries()?;
        let mut replies = self.call(&self.primaries, command);
        if replies.iter().all(Result::is_err) {
            if let Some(Err(error)) = replies.pop() {
                return Err(error);
            }
        }
        let addresses = self.primaries.iter().map(|node| node.addr().to_string());
        Ok(addresses.zip(replies).collect())
    }

    /// Asks all known nodes. The others outvote a node that has left the cluster.
    fn find_primaries(&self) -> RedisResult<Vec<ConnectionInfo>> {
        let known = distinct(self.seeds.iter().chain(&self.primaries));
        let slots = self.call::<Vec<Vec<Value>>>(&known, redis::cmd("CLUSTER").arg("SLOTS"));
        most_common(known.iter().zip(slots).map(|(asked, slots)| Ok(primaries(asked, slots?))).collect())
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

/// Returns the view that most nodes have, or the last error. Prefers a view with more primaries if two are equally common: a
/// node that has left may know only itself. Ignores nodes that know no slots.
fn most_common(views: Vec<RedisResult<Vec<ConnectionInfo>>>) -> RedisResult<Vec<ConnectionInfo>> {
    let mut last: RedisError = std::io::Error::other("no node of the cluster is known").into();
    let mut known = Vec::new();
    for view in views {
        match view {
            Ok(nodes) if nodes.is_empty() => {}
            Ok(nodes) => known.push(nodes),
            Err(error) => last = error,
        }
    }
    let is_equal = |one: &[ConnectionInfo], other: &[ConnectionInfo]| {
        one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
    };
    let votes = |view: &&Vec<ConnectionInfo>| {
        (known.iter().filter(|other| is_equal(view, other)).count(), view.len())
    };
    // `max_by_key` returns the last maximum.
    known.iter().rev().max_by_key(votes).cloned().ok_or(last)
}

/// The primaries in a reply to `CLUSTER SLOTS`, ordered by their addresses. A primary without a known address is the node that
/// was asked.
fn primaries(asked: &ConnectionInfo, slots: Vec<Vec<Value>>) -> Vec<ConnectionInfo> {
    let node = |primary: Value| {
        let Value::Array(mut parts) = primary else { return None };
        parts.truncate(2);
        let (host, port) = <(Option<String>, u16)>::from_redis_value(Value::Array(parts)).ok()?;
        Some(at(asked, host.filter(|host| !host.is_empty()), port))
    };
    let mut found: Vec<ConnectionInfo> =
        slots.into_iter().filter_map(|range| node(range.into_iter().nth(2)?)).collect();
    found.sort_by_cached_key(|node| node.addr().to_string());
    found.dedup_by(|one, other| is_same(one, other));
    found
}

/// The nodes without repetitions.
fn distinct<'a>(nodes: impl IntoIterator<Item = &'a ConnectionInfo>) -> Vec<ConnectionInfo> {
    let mut found: Vec<ConnectionInfo> = Vec::new();
    for node in nodes {
        if !found.iter().any(|known| is_same(known, node)) {
            found.push(node.clone());
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
