// SPDX-License-Identifier: MIT

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::thread;

use redis::{cmd, Client, ConnectionAddr, FromRedisValue, Value};
use tokio::runtime::Builder;

use crate::clock::{left, now, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{ask, locked, RETRY_PAUSE};

/// The server with the locks: a single one, the primary of a Sentinel setup, or a cluster.
///
/// All connections have the options of a [`Client`]: credentials, TLS, and the settings of its sockets.
#[derive(Debug)]
pub struct Server(Kind);

#[derive(Debug)]
enum Kind {
    Single(Client),
    /// The lookup begins with the Sentinel that is `first`: one that answers, as a silent one costs the time of the call.
    Sentinel {
        sentinels: Vec<Client>,
        first: AtomicUsize,
        name: String,
        primary: Client,
    },
    Cluster {
        seeds: Vec<Client>,
        slots: Mutex<Slots>,
    },
}

#[derive(Debug, Default)]
struct Slots {
    /// The first and the last slot of each range, and the address of the node that serves it.
    ranges: Vec<(u16, u16, String)>,
    /// The node that answered last.
    last: Option<Client>,
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
        Server(Kind::Cluster { seeds: nodes.into_iter().collect(), slots: Mutex::default() })
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
                let mut error = nobody();
                let start = first.load(Ordering::Relaxed);
                for i in start..start + sentinels.len() {
                    // The time of the call may end here.
                    first.store(i + 1, Ordering::Relaxed);
                    let sentinel = &sentinels[i % sentinels.len()];
                    match ask(sentinel, &call).await.and_then(parse::<Option<(String, u16)>>) {
                        Ok(Some((host, port))) => {
                            first.store(i, Ordering::Relaxed);
                            return at(primary, &format!("{host}:{port}"));
                        }
                        Ok(None) => {
                            error = Error::new(ErrorKind::Unavailable, format!("no Sentinel knows {name}"))
                        }
                        Err(failed) => error = failed,
                    }
                }
                Err(error)
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
        let Kind::Cluster { seeds, slots } = &self.0 else { return Ok(()) };
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
            nodes.splice(0..0, slots.last.clone());
        }
        let mut call = cmd("CLUSTER");
        call.arg("SLOTS");
        let mut error = nobody();
        for node in nodes {
            let reply = ask(&node, &call).await.and_then(parse::<Vec<(u16, u16, Value)>>);
            match reply.map(|ranges| ranges_of(ranges, &node)) {
                Ok(ranges) if !ranges.is_empty() => {
                    let mut slots = locked(slots);
                    (slots.ranges, slots.last) = (ranges, Some(node));
                    return Ok(());
                }
                Ok(_) => {}
                Err(failed) => error = failed,
            }
        }
        Err(error)
    }
}

fn nobody() -> Error {
    Error::new(ErrorKind::Unavailable, "no node of the cluster and no Sentinel is reachable")
}

fn parse<T: FromRedisValue>(value: Value) -> Result<T> {
    T::from_redis_value(value).map_err(|error| redis::RedisError::from(error).into())
}

fn ranges_of(ranges: Vec<(u16, u16, Value)>, asked: &Client) -> Vec<(u16, u16, String)> {
    let ranges = ranges.into_iter().filter_map(|(first, last, nodes)| {
        let Value::Array(mut primary) = nodes else { return None };
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
    ranges.collect()
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
