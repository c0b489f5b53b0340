// SPDX-License-Identifier: MIT

//! One way to a server, whether it stands alone, behind Sentinel or in a cluster.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use clap::{Args, ValueHint};
use redis::cluster::{ClusterClient, ClusterConnection};
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ClientTlsConfig, Cmd, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, RedisError, RedisResult, TlsCertificates, TlsMode,
};
use socket2::TcpKeepalive;

/// Where the server is, as said at a command line.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct Place {
    /// Where the server is, or several.
    #[arg(
        short,
        long,
        help = "Where the server is: redis://[user:password@]host[:port][/db], with TLS rediss://…, or unix:///path?db=n. Several, \
                with commas, for --cluster and --sentinel",
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6379",
        value_delimiter = ',',
        value_hint = ValueHint::Url
    )]
    url: Vec<String>,

    /// The URL names nodes of a cluster.
    #[arg(long, conflicts_with = "sentinel")]
    cluster: bool,

    /// The URL names Sentinels; the server is the primary that they know under this name. User, password and db of the URL are
    /// the server's.
    #[arg(long, value_name = "NAME")]
    sentinel: Option<String>,

    /// The password of the Sentinels, if they have one.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "SENTINEL_PASSWORD",
        hide_env_values = true,
        requires = "sentinel"
    )]
    sentinel_password: Option<String>,

    /// Trusts the servers whose certificates this authority has signed, in place of those that the system trusts.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cacert: Option<PathBuf>,

    /// The certificate that is shown to the server.
    #[arg(long, value_name = "FILE", requires = "key_file", value_hint = ValueHint::FilePath)]
    cert: Option<PathBuf>,

    /// The private key of --cert.
    #[arg(long = "key", id = "key_file", value_name = "FILE", requires = "cert", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

/// The way to a server. Each [`Server::connect`] finds out anew which one it is.
pub struct Server(Kind);

enum Kind {
    Alone(Client),
    Sentinel(SentinelClient),
    Cluster(ClusterClient),
}

/// An open connection.
pub struct Link(Open);

enum Open {
    Alone(Connection),
    Cluster(Box<ClusterConnection>),
}

impl Place {
    /// Where it is, without passwords.
    #[must_use]
    pub fn shown(&self) -> String {
        let nodes = self
            .url
            .iter()
            .map(|url| node(url).map_or_else(|_| "?".to_owned(), |node| node.addr().to_string()));
        nodes.collect::<Vec<_>>().join(",")
    }

    /// What is needed to connect. Nothing is asked of the network yet.
    ///
    /// # Errors
    ///
    /// If a URL makes no sense, or a file with a certificate cannot be read.
    pub fn server(&self) -> RedisResult<Server> {
        // There is one in this program, so it is no matter if somebody was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let certificates = self.certificates()?;
        let nodes = self.url.iter().map(|url| node(url)).collect::<RedisResult<Vec<_>>>()?;
        let Some(first) = nodes.first().cloned() else {
            return Err((ErrorKind::InvalidClientConfig, "no URL").into());
        };
        let tls = matches!(first.addr(), ConnectionAddr::TcpTls { .. });
        let kind = if self.cluster {
            let mut cluster = ClusterClient::builder(nodes).tcp_settings(tcp()).retries(2);
            if let Some(certificates) = certificates {
                cluster = cluster.certs(certificates);
            }
            Kind::Cluster(cluster.build()?)
        } else if let Some(name) = &self.sentinel {
            let addresses = nodes.iter().map(|node| node.addr().clone());
            let server = first.redis_settings();
            let mut sentinel = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?
                .set_client_to_redis_db(server.db())
                .set_client_to_redis_tcp_settings(tcp())
                .set_client_to_sentinel_tcp_settings(tcp());
            if tls {
                sentinel = sentinel.set_client_to_redis_tls_mode(TlsMode::Secure);
            }
            if let Some(user) = server.username() {
                sentinel = sentinel.set_client_to_redis_username(user);
            }
            if let Some(password) = server.password() {
                sentinel = sentinel.set_client_to_redis_password(password);
            }
            if let Some(password) = &self.sentinel_password {
                sentinel = sentinel.set_client_to_sentinel_password(password);
            }
            if let Some(certificates) = certificates {
                sentinel = sentinel
                    .set_client_to_sentinel_certificates(certificates.clone())
                    .set_client_to_redis_certificates(certificates);
            }
            Kind::Sentinel(sentinel.build()?)
        } else {
            if nodes.len() > 1 {
                return Err((
                    ErrorKind::InvalidClientConfig,
                    "several URLs, and neither --cluster nor --sentinel",
                )
                    .into());
            }
            Kind::Alone(match certificates {
                Some(certificates) if tls => Client::build_with_tls(first, certificates)?,
                _ => Client::open(first)?,
            })
        };
        Ok(Server(kind))
    }

    fn certificates(&self) -> RedisResult<Option<TlsCertificates>> {
        let read = |path: &Option<PathBuf>| path.as_ref().map(fs::read).transpose();
        let (root, cert, key) = (read(&self.cacert)?, read(&self.cert)?, read(&self.key_file)?);
        let client_tls =
            cert.zip(key).map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok((root.is_some() || client_tls.is_some())
            .then_some(TlsCertificates { client_tls, root_cert: root }))
    }
}

impl Server {
    /// Whether another server may become the primary, so that who finds none finds one later.
    #[must_use]
    pub fn may_fail_over(&self) -> bool {
        !matches!(self.0, Kind::Alone(_))
    }

    /// Connects, to the primary of the moment. No step of it takes longer than `patience`, and no call later than that, unless
    /// [`Link::call_within`] says otherwise.
    ///
    /// # Errors
    ///
    /// If nobody is there, or lets us in.
    pub fn connect(&mut self, patience: Duration) -> RedisResult<Link> {
        let open = match &mut self.0 {
            Kind::Alone(client) => Open::Alone(client.get_connection_with_timeout(patience)?),
            Kind::Sentinel(sentinel) => {
                Open::Alone(sentinel.get_client()?.get_connection_with_timeout(patience)?)
            }
            Kind::Cluster(cluster) => {
                let config = redis::cluster::ClusterConfig::new().set_connection_timeout(patience);
                Open::Cluster(Box::new(cluster.get_connection_with_config(config)?))
            }
        };
        Ok(Link(open))
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
        match &mut self.0 {
            Open::Alone(connection) => {
                connection.set_write_timeout(patience)?;
                connection.set_read_timeout(patience)?;
                command.query(connection)
            }
            Open::Cluster(connection) => {
                connection.set_write_timeout(patience)?;
                connection.set_read_timeout(patience)?;
                command.query(&mut **connection)
            }
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
        match &mut self.0 {
            Open::Alone(_) => Ok(vec![self.call_within(Some(patience), command)?]),
            Open::Cluster(connection) => {
                connection.set_read_timeout(Some(patience))?;
                let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let replies = connection.route_command(command, everywhere)?;
                let replies = HashMap::<String, T>::from_redis_value(replies)?;
                Ok(replies.into_values().collect())
            }
        }
    }
}

/// What a URL says; the password is from `REDISCLI_AUTH` if it has none, as with redis-cli.
fn node(url: &str) -> RedisResult<ConnectionInfo> {
    let node = url.into_connection_info()?.set_tcp_settings(tcp());
    let settings = node.redis_settings().clone();
    Ok(match (settings.password(), env::var("REDISCLI_AUTH")) {
        (None, Ok(password)) if !password.is_empty() => {
            node.set_redis_settings(settings.set_password(password))
        }
        _ => node,
    })
}

/// A server that is gone without a word is noticed within half a minute, also while nothing is sent.
fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(Duration::from_secs(25))
}

/// What an error means for one who waits for a lock or keeps one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The hold is not ours any more.
    NotOwner,
    /// It may go well in a moment: no connection, a failover, a server that starts, a slot that moves.
    ForNow,
    /// It will not.
    ForGood,
}

/// What is to be thought of an error.
#[must_use]
pub fn trouble(error: &RedisError) -> Trouble {
    match error.code() {
        Some("NOTOWNER") => Trouble::NotOwner,
        Some(
            "UNBLOCKED" | "QUARANTINE" | "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN"
            | "MOVED" | "ASK" | "BUSY" | "MISCONF" | "NOREPLICAS" | "OOM",
        ) => Trouble::ForNow,
        Some(_) => Trouble::ForGood,
        None if matches!(error.kind(), ErrorKind::InvalidClientConfig | ErrorKind::AuthenticationFailed) => {
            Trouble::ForGood
        }
        None => Trouble::ForNow,
    }
}

/// An error in words for a terminal.
#[must_use]
pub fn in_words(error: &RedisError) -> String {
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    if words.contains("unknown command") && words.contains("LOCK.") {
        return "the server has no LOCK commands: is the module loaded?".to_owned();
    }
    words
}
