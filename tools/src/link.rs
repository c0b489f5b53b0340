// SPDX-License-Identifier: MIT

//! Connections for questions to a server, or to all of a cluster.

use std::collections::HashMap;
use std::time::Duration;

use redis::cluster::{ClusterClient, ClusterConfig, ClusterConnection};
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{
    Client, ClientTlsConfig, Cmd, Connection, ConnectionAddr, ConnectionInfo, FromRedisValue, RedisError,
    RedisResult, TlsCertificates,
};
use redis_lock_client::Server;

use crate::place::{explained, tcp, Certificates, Place};

/// The way to a server. Each [`Way::connect`] finds out anew which one it is.
pub struct Way(Kind);

enum Kind {
    /// There is one, or one at a time.
    One(Server, Option<TlsCertificates>),
    Cluster(ClusterClient),
}

/// An open connection.
pub struct Link(Open);

enum Open {
    One(Connection),
    Cluster(Box<ClusterConnection>),
}

impl Way {
    /// What is needed to connect. Nothing is asked of the network yet.
    ///
    /// # Errors
    ///
    /// If a URL makes no sense, or a file with a certificate cannot be read.
    pub fn to(place: &Place) -> Result<Way, String> {
        let certificates = place.certificates()?;
        let Some(nodes) = place.cluster()? else {
            return Ok(Way(Kind::One(place.server_with(&certificates)?, pem(certificates))));
        };
        let certificates = pem(certificates);
        let mut cluster = ClusterClient::builder(nodes).tcp_settings(tcp()).retries(2);
        if let Some(certificates) = certificates {
            cluster = cluster.certs(certificates);
        }
        Ok(Way(Kind::Cluster(cluster.build().map_err(|error| in_words(&error))?)))
    }

    /// Connects, to the primary of the moment. No step of it takes longer than `patience`, and no call later than that, unless
    /// [`Link::call_within`] says otherwise.
    ///
    /// # Errors
    ///
    /// If nobody is there, or lets us in.
    pub fn connect(&self, patience: Duration) -> RedisResult<Link> {
        Ok(Link(match &self.0 {
            Kind::One(server, certificates) => {
                let found =
                    server.find(patience).map_err(|error| std::io::Error::other(error.text().to_owned()))?;
                Open::One(client(found, certificates.as_ref())?.get_connection_with_timeout(patience)?)
            }
            Kind::Cluster(cluster) => {
                let config = ClusterConfig::new().set_connection_timeout(patience);
                Open::Cluster(Box::new(cluster.get_connection_with_config(config)?))
            }
        }))
    }
}

impl Link {
    /// Calls, and waits for the reply for as long as said, or without an end. After an error of the connection it is of no use.
    ///
    /// # Errors
    ///
    /// What the server says, or if it says nothing in time.
    pub fn call_within<T: FromRedisValue>(
        &mut self,
        patience: Option<Duration>,
        command: &Cmd,
    ) -> RedisResult<T> {
        self.wait_for_replies(patience)?;
        match &mut self.0 {
            Open::One(connection) => command.query(connection),
            Open::Cluster(connection) => command.query(&mut **connection),
        }
    }

    /// Calls every primary that there is: one server, or each of a cluster.
    ///
    /// # Errors
    ///
    /// What one of them says, or if it says nothing in time.
    pub fn call_everywhere<T: FromRedisValue>(
        &mut self,
        patience: Duration,
        command: &Cmd,
    ) -> RedisResult<Vec<T>> {
        self.wait_for_replies(Some(patience))?;
        match &mut self.0 {
            Open::One(_) => Ok(vec![self.call_within(Some(patience), command)?]),
            Open::Cluster(connection) => {
                let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let replies = connection.route_command(command, everywhere)?;
                let replies = HashMap::<String, T>::from_redis_value(replies)?;
                Ok(replies.into_values().collect())
            }
        }
    }

    fn wait_for_replies(&mut self, patience: Option<Duration>) -> RedisResult<()> {
        match &self.0 {
            Open::One(connection) => {
                connection.set_write_timeout(patience)?;
                connection.set_read_timeout(patience)
            }
            Open::Cluster(connection) => {
                connection.set_write_timeout(patience)?;
                connection.set_read_timeout(patience)
            }
        }
    }
}

fn client(node: ConnectionInfo, certificates: Option<&TlsCertificates>) -> RedisResult<Client> {
    match (certificates, node.addr()) {
        (Some(certificates), ConnectionAddr::TcpTls { .. }) => {
            Client::build_with_tls(node, certificates.clone())
        }
        _ => Client::open(node),
    }
}

fn pem(certificates: Certificates) -> Option<TlsCertificates> {
    let Certificates { authority: root_cert, own } = certificates;
    let client_tls = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
    (root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates { client_tls, root_cert })
}

/// An error in words for a terminal.
#[must_use]
pub fn in_words(error: &RedisError) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => explained(&format!("{code} {detail}")),
        _ => explained(&error.to_string()),
    }
}
