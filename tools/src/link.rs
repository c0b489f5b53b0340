// SPDX-License-Identifier: MIT

//! Connections for queries to a server, or to all primaries of a cluster.

use std::collections::HashMap;
use std::time::Duration;

use redis::cluster::{ClusterClient, ClusterConfig, ClusterConnection};
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Cmd, Connection, FromRedisValue, RedisError, RedisResult};
use redis_lock_client::Server;

use crate::place::{explain, tcp, ServerOptions, REPLY_TIMEOUT};
use crate::survey::Survey;

/// Connects to a server or cluster. Each [`Connector::connect`] looks up the current primary.
pub struct Connector(Kind);

enum Kind {
    /// A single server, or the primary of a Sentinel setup.
    One(Server),
    Cluster(ClusterClient),
}

/// An open connection.
pub struct Link(Open);

enum Open {
    /// A server and its address.
    One(Connection, String),
    Cluster(Box<ClusterConnection>),
}

impl Connector {
    /// Prepares connections with these options. Does not use the network yet.
    ///
    /// # Errors
    ///
    /// If a URL is invalid, or a file with a certificate cannot be read.
    pub fn new(options: &ServerOptions) -> Result<Connector, String> {
        let Some(nodes) = options.cluster()? else { return Ok(Connector(Kind::One(options.server()?))) };
        let mut cluster = ClusterClient::builder(nodes).tcp_settings(tcp()).retries(2);
        if let Some(certificates) = options.certificates()? {
            cluster = cluster.certs(certificates);
        }
        Ok(Connector(Kind::Cluster(cluster.build().map_err(|error| describe(&error))?)))
    }

    /// Connects to the current primary. `timeout` limits each step.
    ///
    /// # Errors
    ///
    /// If no server is reachable, or if it refuses the connection.
    pub fn connect(&self, timeout: Duration) -> RedisResult<Link> {
        Ok(Link(match &self.0 {
            Kind::One(server) => {
                let primary = server.primary().map_err(|error| std::io::Error::other(error.to_string()))?;
                let address = primary.get_connection_info().addr().to_string();
                Open::One(primary.get_connection_with_timeout(timeout)?, address)
            }
            Kind::Cluster(cluster) => {
                let config = ClusterConfig::new().set_connection_timeout(timeout);
                Open::Cluster(Box::new(cluster.get_connection_with_config(config)?))
            }
        }))
    }
}

impl Link {
    /// Makes a call. Waits at most `timeout` for the reply, or without limit. The link is unusable after a connection error.
    ///
    /// # Errors
    ///
    /// If the server replies with an error, or does not reply in time.
    pub fn call_within<T: FromRedisValue>(
        &mut self,
        timeout: Option<Duration>,
        command: &Cmd,
    ) -> RedisResult<T> {
        self.set_timeouts(timeout)?;
        match &mut self.0 {
            Open::One(connection, _) => command.query(connection),
            Open::Cluster(connection) => command.query(&mut **connection),
        }
    }

    /// Calls every primary: one server, or all primaries of a cluster. Returns each reply with the address of its server.
    ///
    /// # Errors
    ///
    /// If one of them replies with an error, or does not reply in time.
    pub fn call_everywhere<T: FromRedisValue>(
        &mut self,
        timeout: Duration,
        command: &Cmd,
    ) -> RedisResult<Vec<(String, T)>> {
        self.set_timeouts(Some(timeout))?;
        match &mut self.0 {
            Open::One(connection, address) => Ok(vec![(address.clone(), command.query(connection)?)]),
            Open::Cluster(connection) => {
                let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let replies = connection.route_command(command, everywhere)?;
                let replies = HashMap::<String, T>::from_redis_value(replies)?;
                Ok(replies.into_iter().collect())
            }
        }
    }

    fn set_timeouts(&mut self, timeout: Option<Duration>) -> RedisResult<()> {
        match &self.0 {
            Open::One(connection, _) => {
                connection.set_write_timeout(timeout)?;
                connection.set_read_timeout(timeout)
            }
            Open::Cluster(connection) => {
                connection.set_write_timeout(timeout)?;
                connection.set_read_timeout(timeout)
            }
        }
    }
}

/// A connection that is opened again after an error.
pub struct Caller {
    connector: Connector,
    link: Option<Link>,
    /// The nodes of the cluster, with `--cluster`.
    survey: Option<Survey>,
}

impl Caller {
    /// Prepares calls with these options. Does not use the network yet.
    ///
    /// # Errors
    ///
    /// If a URL is invalid, or a file with a certificate cannot be read.
    pub fn new(options: &ServerOptions) -> Result<Caller, String> {
        let survey = options.cluster()?.map(|nodes| Survey::new(nodes, options)).transpose()?;
        Ok(Caller { connector: Connector::new(options)?, link: None, survey })
    }

    /// Calls every primary: one server, or all primaries of a cluster at the same time. Returns the reply of each with its
    /// address. An error stands for a primary that does not reply.
    ///
    /// # Errors
    ///
    /// If no primary replies.
    pub fn call_each<T: FromRedisValue + Send>(
        &mut self,
        command: &Cmd,
    ) -> RedisResult<Vec<(String, RedisResult<T>)>> {
        if let Some(survey) = &mut self.survey {
            return survey.call_each(command);
        }
        let replies = self.ask(|link| link.call_everywhere(REPLY_TIMEOUT, command))?;
        Ok(replies.into_iter().map(|(address, reply)| (address, Ok(reply))).collect())
    }

    /// Asks over the open connection, or over a new one.
    ///
    /// # Errors
    ///
    /// If no server is reachable, or if `question` returns an error.
    pub fn ask<T>(&mut self, question: impl FnOnce(&mut Link) -> RedisResult<T>) -> RedisResult<T> {
        let mut open = match self.link.take() {
            Some(open) => open,
            None => self.connector.connect(REPLY_TIMEOUT)?,
        };
        let answer = question(&mut open);
        // After a reply of the server, even an error, the connection remains usable.
        if answer.as_ref().err().is_none_or(|error| error.code().is_some()) {
            self.link = Some(open);
        }
        answer
    }
}

/// The text of an error, with advice for frequent mistakes.
#[must_use]
pub fn describe(error: &RedisError) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => explain(&format!("{code} {detail}")),
        _ => explain(&error.to_string()),
    }
}
