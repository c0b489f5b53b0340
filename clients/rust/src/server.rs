// SPDX-License-Identifier: MIT

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;

use redis::{cmd, Client, Cmd, ConnectionAddr, FromRedisValue, Value};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::clock::{left, now, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{ask, locked, CALL_TIMEOUT, RETRY_PAUSE};

/// The server with the locks: a single one, the primary of a Sentinel setup, or a cluster.
///
/// All connections have the options of a [`Client`]: credentials, TLS, and the settings of its sockets.
#[derive(Debug)]
pub struct Server(Kind);

#[derive(Debug)]
enum Kind {
    Single(Client),
    Sentinel { sentinels: Vec<Client>, first: AtomicUsize, name: String, primary: Client },
    Cluster { seeds: Vec<Client>, first: AtomicUsize, slots: Mutex<Slots> },
}

#[derive(Debug, Default)]
struct Slots {
    /// The first and the last slot of each range, and the address of the node that serves it.
    ranges: Vec<(u16, u16, String)>,
    refreshed: Moment,
}

impl Slots {
    fn node_of(&self, slot: u16) -> Option<String> {
        let range = self.ranges.iter().find(|(first, last, _)| (first..=last).contains(&&slot));
        range.map(|(_, _, node)| node.clone())
    }
}

impl From<Client> for Server {
    fn from(client: Client) -> Server {
        Server(Kind::Single(client))
    }
}

impl Server {
    /// The primary that these Sentinels know by this name. Connections to it have the options of `primary`, whose address is
    /// not used.
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = Client>,
        name: impl Into<String>,
        primary: Client,
    ) -> Server {
        let (sentinels, first) = (sentinels.into_iter().collect(), AtomicUsize::new(0));
        Server(Kind::Sentinel { sentinels, first, name: name.into(), primary })
    }

    /// A cluster, found by any of these nodes. Connections to all nodes have the options of the first one.
    pub fn cluster(nodes: impl IntoIterator<Item = Client>) -> Server {
        let (seeds, first) = (nodes.into_iter().collect(), AtomicUsize::new(0));
        Server(Kind::Cluster { seeds, first, slots: Mutex::default() })
    }

    /// The client of the server, or of the present primary of a Sentinel setup. Blocks the thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if no Sentinel knows the primary, and [`ErrorKind::Misuse`] for a cluster.
    pub fn primary(&self) -> Result<Client> {
        if self.is_cluster() {
            return Err(Error::new(ErrorKind::Misuse, "a cluster has several primaries"));
        }
        // On a thread of its own, as the caller's may belong to a runtime.
        let find = || {
            Builder::new_current_thread().enable_all().build().ok().map(|own| own.block_on(self.client("")))
        };
        let found = thread::scope(|scope| scope.spawn(find).join());
        found.ok().flatten().unwrap_or_else(|| Err(nobody()))
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.0, Kind::Cluster { .. })
    }

    /// The client of a node. Looks up the present primary of a Sentinel setup.
    pub(crate) async fn client(&self, node: &str) -> Result<Client> {
        match &self.0 {
            Kind::Single(client) => Ok(client.clone()),
            Kind::Cluster { seeds, .. } => at(seeds.first().ok_or_else(nobody)?, node),
            Kind::Sentinel { sentinels, first, name, primary } => {
                let mut call = cmd("SENTINEL");
                call.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
                let address = |value, _: &Client| parse::<Option<(String, u16)>>(value);
                let found = first_answer(sentinels, first, &call, address).await?;
                let (host, port) = found.ok_or_else(|| Error::unknown_primary(name))?;
                at(primary, &format!("{host}:{port}"))
            }
        }
    }

    /// The node that served a key by the last answer of the cluster.
    pub(crate) fn known_node_of(&self, key: &[u8]) -> Option<String> {
        match &self.0 {
            Kind::Cluster { slots, .. } => locked(slots).node_of(slot_of(key)),
            _ => Some(String::new()),
        }
    }

    /// The node that serves a key, or `""` without a cluster.
    pub(crate) async fn node_of(&self, key: &[u8]) -> Result<String> {
        if self.known_node_of(key).is_none() {
            self.refresh().await?;
        }
        let text = || format!("no node of the cluster serves slot {}", slot_of(key));
        self.known_node_of(key).ok_or_else(|| Error::new(ErrorKind::Unavailable, text()))
    }

    /// Asks the cluster which node serves which slot.
    pub(crate) async fn refresh(&self) -> Result<()> {
        let Kind::Cluster { seeds, first, slots } = &self.0 else { return Ok(()) };
        let mut nodes: Vec<Client> = seeds.clone();
        {
            let mut slots = locked(slots);
            if !slots.ranges.is_empty() && !left(slots.refreshed + RETRY_PAUSE).is_zero() {
                return Ok(());
            }
            slots.refreshed = now();
            for (_, _, node) in &slots.ranges {
                nodes.extend(at(seeds.first().ok_or_else(nobody)?, node));
            }
        }
        let mut call = cmd("CLUSTER");
        call.arg("SLOTS");
        let find = first_answer(&nodes, first, &call, ranges_of);
        let ranges = timeout(CALL_TIMEOUT, find).await.unwrap_or_else(|_| Err(nobody()))?;
        locked(slots).ranges = ranges.ok_or_else(nobody)?;
        Ok(())
    }
}

/// The first answer of any of these servers, beginning with the one that answered last. A silent one can cost all time of the
/// caller, so the next search begins after it. None if all of them replied without an answer.
async fn first_answer<T>(
    servers: &[Client],
    first: &AtomicUsize,
    call: &Cmd,
    read: impl Fn(Value, &Client) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let (start, mut failed) = (first.load(Ordering::Relaxed), servers.is_empty().then(nobody));
    for i in start..start + servers.len() {
        first.store(i + 1, Ordering::Relaxed);
        let server = &servers[i % servers.len()];
        match ask(server, call).await.and_then(|value| read(value, server)) {
            Ok(Some(answer)) => {
                first.store(i, Ordering::Relaxed);
                return Ok(Some(answer));
            }
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(None), Err)
}

fn nobody() -> Error {
    Error::new(ErrorKind::Unavailable, "no node of the cluster and no Sentinel is reachable")
}

fn parse<T: FromRedisValue>(value: Value) -> Result<T> {
    T::from_redis_value(value).map_err(|error| redis::RedisError::from(error).into())
}

/// The ranges in a reply: the first and the last slot, the primary, and any number of replicas.
fn ranges_of(reply: Value, asked: &Client) -> Result<Option<Vec<(u16, u16, String)>>> {
    let ranges = parse::<Vec<Vec<Value>>>(reply)?.into_iter().filter_map(|range| {
        let mut parts = range.into_iter();
        let (first, last) = (parse(parts.next()?).ok()?, parse(parts.next()?).ok()?);
        let Value::Array(mut primary) = parts.next()? else { return None };
        primary.truncate(2);
        let (host, port) = parse::<(Option<String>, u16)>(Value::Array(primary)).ok()?;
        // A node without a known address is the one that was asked.
        let host =
            host.filter(|host| !host.is_empty()).or_else(|| match asked.get_connection_info().addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host.clone()),
                _ => None,
            })?;
        Some((first, last, format!("{host}:{port}")))
    });
    // A node that has left the cluster knows none.
    Ok(Some(ranges.collect::<Vec<_>>()).filter(|ranges| !ranges.is_empty()))
}

/// A client with the same options for another address.
fn at(client: &Client, address: &str) -> Result<Client> {
    let (host, port) = address.rsplit_once(':').ok_or_else(nobody)?;
    let (host, port) = (host.to_owned(), port.parse().map_err(|_| nobody())?);
    let info = client.get_connection_info().clone();
    let address = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Ok(Client::open(info.set_addr(address))?)
}

/// The slot of a key: that of its hash tag, if it has one.
fn slot_of(key: &[u8]) -> u16 {
    let find = |bytes: &[u8], byte| bytes.iter().position(|each| *each == byte);
    let tag = find(key, b'{').and_then(|open| {
        let rest = &key[open + 1..];
        find(rest, b'}').filter(|close| *close > 0).map(|close| &rest[..close])
    });
    crc16::State::<crc16::XMODEM>::calculate(tag.unwrap_or(key)) % 16384
}
