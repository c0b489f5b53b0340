// SPDX-License-Identifier: MIT

//! Where the locks are: one server, the primary that Sentinels know, or the nodes of a cluster.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Value};

use crate::error::{Error, Result};
use crate::session::A_MOMENT;
use crate::talk::{no_connection, unreached, Breaker, Talk};
use crate::tls;

/// Where the locks are. Which server that is, is found anew for each connection.
#[derive(Clone)]
#[must_use]
pub struct Server {
    kind: Kind,
    tls: tls::Config,
}

#[derive(Clone)]
enum Kind {
    Alone(ConnectionInfo),
    /// `primary` has what is said to the primary: user, password, database, and whether there is TLS.
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        name: String,
        primary: ConnectionInfo,
        /// Who is asked first: not one that did not answer, or each call would wait for it until it has no more time.
        first: Arc<AtomicUsize>,
    },
    Cluster(Vec<ConnectionInfo>),
}

/// A server among those that have the locks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// There is but one.
    Only,
    /// That of a cluster.
    At(String, u16),
}

impl Server {
    /// One that stands alone.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if that is no address, or one of TLS that is not to be verified.
    pub fn alone(address: impl IntoConnectionInfo) -> Result<Server> {
        Ok(Server { kind: Kind::Alone(read(address)?), tls: tls::Config::default() })
    }

    /// The primary that Sentinels know by a name. Its address says how it is logged in to, and whether by TLS: host and port do
    /// not matter. Each connection is made to whoever is the primary by then.
    ///
    /// # Errors
    ///
    /// As [`Server::alone`], and if there is no Sentinel.
    pub fn sentinel<A: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = A>,
        name: impl Into<String>,
        primary: impl IntoConnectionInfo,
    ) -> Result<Server> {
        let (sentinels, primary) = (some(sentinels)?, read(primary)?);
        let kind = Kind::Sentinel { sentinels, name: name.into(), primary, first: Arc::default() };
        Ok(Server { kind, tls: tls::Config::default() })
    }

    /// A cluster that has these nodes, and others that they know. User, password and TLS are those of the first.
    ///
    /// # Errors
    ///
    /// As [`Server::alone`], and if there is no node.
    pub fn cluster<A: IntoConnectionInfo>(nodes: impl IntoIterator<Item = A>) -> Result<Server> {
        let nodes = some(nodes)?;
        if let Some(node) = nodes.iter().find(|node| matches!(node.addr(), ConnectionAddr::Unix(_))) {
            return Err(Error::Misuse(format!(
                "{}: the nodes of a cluster have a host and a port",
                node.addr()
            )));
        }
        Ok(Server { kind: Kind::Cluster(nodes), tls: tls::Config::default() })
    }

    /// How certificates are looked at, and which is shown. Those of the system's authorities are trusted, if nothing is said.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: impl Into<std::sync::Arc<rustls::ClientConfig>>) -> Server {
        self.tls = Some(config.into());
        self
    }

    /// Whether another server may take the place of one that is gone.
    #[must_use]
    pub fn may_fail_over(&self) -> bool {
        !matches!(self.kind, Kind::Alone(_))
    }

    /// Whether Sentinels know who is the primary.
    pub(crate) fn is_watched(&self) -> bool {
        matches!(self.kind, Kind::Sentinel { .. })
    }

    /// The address of the primary of the moment; of a cluster, that of the first node that was named. No step takes longer
    /// than `patience`.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no Sentinel knows one that is a primary.
    pub fn find(&self, patience: Duration) -> Result<ConnectionInfo> {
        match &self.kind {
            Kind::Sentinel { .. } => Ok(self.primary(patience, &Breaker::default())?.0),
            Kind::Alone(info) => Ok(info.clone()),
            Kind::Cluster(nodes) => nodes.first().cloned().ok_or_else(|| Error::Misuse("no node".to_owned())),
        }
    }

    /// Connects to one of its servers.
    pub(crate) fn connect(&self, node: &Node, patience: Duration, breaker: &Breaker) -> Result<Talk> {
        match (&self.kind, node) {
            (Kind::Alone(info), _) => self.open(info, patience, breaker),
            (Kind::Sentinel { .. }, _) => Ok(self.primary(patience, breaker)?.1),
            (Kind::Cluster(nodes), Node::At(host, port)) => {
                let like = nodes.first().ok_or_else(|| Error::Misuse("no node".to_owned()))?;
                self.open(&at(like, host.clone(), *port), patience, breaker)
            }
            (Kind::Cluster(_), Node::Only) => Err(Error::Misuse("which node?".to_owned())),
        }
    }

    fn open(&self, info: &ConnectionInfo, patience: Duration, breaker: &Breaker) -> Result<Talk> {
        Talk::open(info, &self.tls, patience, breaker)
    }

    /// The primary that the first Sentinel knows that answers, with a connection to it.
    fn primary(&self, patience: Duration, breaker: &Breaker) -> Result<(ConnectionInfo, Talk)> {
        let Kind::Sentinel { sentinels, name, primary, first } = &self.kind else {
            return Err(Error::Misuse("no Sentinel".to_owned()));
        };
        let mut last = None;
        let begin = first.load(Ordering::Relaxed);
        // Whoever calls does not wait much longer than for one.
        let soon = if sentinels.len() > 1 { patience.min(A_MOMENT) } else { patience };
        for turn in (begin..).take(sentinels.len()) {
            let Some(sentinel) = sentinels.get(turn % sentinels.len()) else { break };
            first.store(turn + 1, Ordering::Relaxed);
            let found = self.open(sentinel, soon, breaker).and_then(|mut talk| {
                let ask = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name).clone();
                let known = talk.call(&ask).map_err(|error| unreached(sentinel, error))?;
                let (host, port) = address(&known)
                    .ok_or_else(|| no_connection(sentinel, format!("it knows no primary {name}")))?;
                let primary = at(primary, host, port);
                let mut talk = self.open(&primary, patience, breaker)?;
                // After a failover they may name the old one for a moment.
                match talk.ask(&cmd("ROLE")).map_err(|error| unreached(&primary, error))? {
                    Value::Array(words) if words.first() != Some(&Value::BulkString(b"master".to_vec())) => {
                        Err(no_connection(&primary, "it is no primary"))
                    }
                    // Who has no permission to ask is told by the first call.
                    _ => Ok((primary, talk)),
                }
            });
            match found {
                Ok(found) => {
                    first.store(turn % sentinels.len(), Ordering::Relaxed);
                    return Ok(found);
                }
                // What one knows of the name, the others know, too; but a Sentinel may be new.
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::Misuse("no Sentinel".to_owned())))
    }
}

/// Which node of a cluster has which slot, as far as is known. What is not known is asked of a node that is: it tells who has it.
pub(crate) struct Map {
    named: Vec<Node>,
    /// Which of these was asked last.
    turn: usize,
    /// Who is asked if nothing is known of a slot.
    any: Node,
    slots: HashMap<u16, Node>,
}

impl Map {
    pub(crate) fn new(server: &Server) -> Map {
        let node = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Node::At(host.clone(), *port)
            }
            _ => Node::Only,
        };
        let named: Vec<Node> = match &server.kind {
            Kind::Cluster(nodes) => nodes.iter().map(node).collect(),
            _ => Vec::new(),
        };
        let any = named.first().cloned().unwrap_or(Node::Only);
        Map { named, turn: 0, any, slots: HashMap::new() }
    }

    /// Whom to ask.
    pub(crate) fn node(&self, slot: Option<u16>) -> Node {
        slot.and_then(|slot| self.slots.get(&slot)).unwrap_or(&self.any).clone()
    }

    /// The slot of a key, where there are slots.
    pub(crate) fn slot(&self, key: &[u8]) -> Option<u16> {
        self.is_of_cluster().then(|| slot(key))
    }

    /// How many nodes may be asked who has a slot.
    pub(crate) fn named(&self) -> usize {
        self.named.len()
    }

    /// Whether there are slots.
    pub(crate) fn is_of_cluster(&self) -> bool {
        !self.named.is_empty()
    }

    /// It was told who has a slot.
    pub(crate) fn learn(&mut self, slot: Option<u16>, node: Node) {
        if let Some(slot) = slot {
            self.slots.insert(slot, node);
        }
    }

    /// It does not answer: others may tell who has taken its place.
    pub(crate) fn forget(&mut self, node: &Node) {
        self.slots.retain(|_, other| other != node);
        if self.any == *node && self.is_of_cluster() {
            self.turn = (self.turn + 1) % self.named.len();
            let other = self.slots.values().next().or_else(|| self.named.get(self.turn));
            self.any = other.cloned().unwrap_or(Node::Only);
        }
    }
}

/// The node of `MOVED` and `ASK`: without a host, that of the node that said so.
pub(crate) fn told_of(place: &str, by: &Node) -> Option<Node> {
    let (host, port) = place.rsplit_once(':')?;
    let host = match (host, by) {
        ("", Node::At(host, _)) => host,
        _ => host,
    };
    Some(Node::At(host.to_owned(), port.parse().ok()?))
}

/// What is between the first `{` and the `}` behind it decides, if it is anything: Redis Cluster specification, hash tags.
fn slot(key: &[u8]) -> u16 {
    let position = |of: u8, from: usize| {
        key.get(from..).and_then(|rest| rest.iter().position(|byte| *byte == of)).map(|at| from + at)
    };
    let tag = position(b'{', 0).and_then(|open| Some((open + 1, position(b'}', open + 1)?)));
    let hashed = tag.filter(|(from, to)| from < to).and_then(|(from, to)| key.get(from..to));
    crc16::State::<crc16::XMODEM>::calculate(hashed.unwrap_or(key)) % 16384
}

fn at(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match like.addr() {
        ConnectionAddr::TcpTls { .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(address)
}

fn address(known: &Value) -> Option<(String, u16)> {
    let Value::Array(words) = known else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = words.as_slice() else { return None };
    let port = std::str::from_utf8(port).ok()?.parse().ok()?;
    Some((String::from_utf8(host.clone()).ok()?, port))
}

fn read(address: impl IntoConnectionInfo) -> Result<ConnectionInfo> {
    let info = address.into_connection_info().map_err(|error| Error::Misuse(error.to_string()))?;
    match info.addr() {
        ConnectionAddr::TcpTls { .. } if !cfg!(feature = "tls") => {
            Err(Error::Misuse(format!("{}: TLS needs the feature `tls`", info.addr())))
        }
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            Err(Error::Misuse(format!("{}: who does not look at certificates needs no TLS", info.addr())))
        }
        ConnectionAddr::TcpTls { tls_params: Some(_), .. } => {
            Err(Error::Misuse(format!("{}: certificates are given by Server::tls", info.addr())))
        }
        ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. } | ConnectionAddr::Unix(_) => Ok(info),
        other => Err(Error::Misuse(format!("{other}: only TCP, TLS and Unix sockets are supported"))),
    }
}

fn some<A: IntoConnectionInfo>(addresses: impl IntoIterator<Item = A>) -> Result<Vec<ConnectionInfo>> {
    let all = addresses.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    if all.is_empty() {
        return Err(Error::Misuse("no address".to_owned()));
    }
    Ok(all)
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |nodes: &[ConnectionInfo]| {
            nodes.iter().map(|node| node.addr().to_string()).collect::<Vec<_>>().join(",")
        };
        match &self.kind {
            Kind::Alone(info) => write!(f, "Server({})", info.addr()),
            Kind::Sentinel { sentinels, name, .. } => write!(f, "Server({name} of {})", shown(sentinels)),
            Kind::Cluster(nodes) => write!(f, "Server(cluster {})", shown(nodes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_that_redis_gives_it() {
        // What CLUSTER KEYSLOT replies.
        for (key, expected) in [
            ("", 0),
            ("123456789", 12739),
            ("foo", 12182),
            ("{foo}bar", 12182),
            ("a{foo}{bar}", 12182),
            ("{}foo", 9500),
            ("foo{", 7673),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    #[test]
    fn what_is_not_known_is_asked_of_others_in_turn() {
        let server = Server::cluster(["redis://a:1", "redis://b:2"]).unwrap();
        let node = |host: &str, port| Node::At(host.to_owned(), port);
        let mut map = Map::new(&server);
        assert_eq!(map.node(Some(7)), node("a", 1));
        map.learn(Some(7), node("c", 3));
        assert_eq!((map.node(Some(7)), map.node(Some(8))), (node("c", 3), node("a", 1)));
        // One that was not named may be the only one that is left.
        map.forget(&node("a", 1));
        assert_eq!((map.node(Some(7)), map.node(Some(8))), (node("c", 3), node("c", 3)));
        map.forget(&node("c", 3));
        assert_eq!(map.node(Some(7)), node("a", 1));
        map.forget(&node("a", 1));
        assert_eq!(map.node(Some(7)), node("b", 2));
    }

    #[test]
    fn a_node_is_told_of_with_or_without_its_host() {
        let by = Node::At("10.0.0.1".to_owned(), 1);
        assert_eq!(told_of("10.0.0.2:6379", &by), Some(Node::At("10.0.0.2".to_owned(), 6379)));
        assert_eq!(told_of(":6380", &by), Some(Node::At("10.0.0.1".to_owned(), 6380)));
        assert_eq!(told_of("::1:6379", &by), Some(Node::At("::1".to_owned(), 6379)));
        assert_eq!(told_of("nonsense", &by), None);
    }

    #[test]
    fn an_address_that_cannot_be_used_is_refused() {
        assert!(matches!(Server::alone("gopher://x"), Err(Error::Misuse(_))));
        assert!(matches!(Server::cluster(Vec::<&str>::new()), Err(Error::Misuse(_))));
    }
}
