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
use redis::{
    Client, ClientTlsConfig, Cmd, Connection, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, RedisConnectionInfo, RedisError, RedisResult, TlsCertificates, Value,
};
use socket2::TcpKeepalive;

/// How long a server may take to answer what it answers at once.
pub const SOON: Duration = Duration::from_secs(5);

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
    Sentinel(Sentinels),
    Cluster(ClusterClient),
}

/// Sentinels, and how to reach the server that they name.
struct Sentinels {
    sentinels: Vec<Client>,
    name: String,
    /// Any of the URLs: user, password and db of the server, whether there is TLS, and how the certificate is looked at.
    primary: ConnectionInfo,
    certificates: Option<TlsCertificates>,
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
        let kind = if self.cluster {
            let mut cluster = ClusterClient::builder(nodes).tcp_settings(tcp()).retries(2);
            if let Some(certificates) = certificates {
                cluster = cluster.certs(certificates);
            }
            Kind::Cluster(cluster.build()?)
        } else if let Some(name) = &self.sentinel {
            // User, password and db of the URL are the server's.
            let mut asked = RedisConnectionInfo::default();
            if let Some(password) = &self.sentinel_password {
                asked = asked.set_password(password);
            }
            let sentinels = nodes.into_iter().map(|node| node.set_redis_settings(asked.clone()));
            let sentinels =
                sentinels.map(|node| client(node, certificates.as_ref())).collect::<RedisResult<_>>()?;
            Kind::Sentinel(Sentinels { sentinels, name: name.clone(), primary: first, certificates })
        } else {
            if nodes.len() > 1 {
                return Err((
                    ErrorKind::InvalidClientConfig,
                    "several URLs, and neither --cluster nor --sentinel",
                )
                    .into());
            }
            Kind::Alone(client(first, certificates.as_ref())?)
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
            Kind::Sentinel(sentinels) => Open::Alone(sentinels.connect(patience)?),
            Kind::Cluster(cluster) => {
                let config = redis::cluster::ClusterConfig::new().set_connection_timeout(patience);
                Open::Cluster(Box::new(cluster.get_connection_with_config(config)?))
            }
        };
        Ok(Link(open))
    }
}

impl Sentinels {
    /// Connects to the primary that the first Sentinel knows that answers. One that does not is not waited for without an end.
    fn connect(&self, patience: Duration) -> RedisResult<Connection> {
        let mut last = RedisError::from((ErrorKind::InvalidClientConfig, "no Sentinel"));
        for sentinel in &self.sentinels {
            match self.primary_of(sentinel, patience).and_then(|primary| {
                let mut connection = primary.get_connection_with_timeout(patience)?;
                connection.set_read_timeout(Some(patience))?;
                let role: Vec<Value> = redis::cmd("ROLE").query(&mut connection)?;
                match role.first() {
                    Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
                    _ => {
                        Err((ErrorKind::Io, "the Sentinels name a server that is not the primary yet").into())
                    }
                }
            }) {
                Ok(connection) => return Ok(connection),
                // What one knows of the name, the others know, too; but a Sentinel may be new.
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn primary_of(&self, sentinel: &Client, patience: Duration) -> RedisResult<Client> {
        let mut connection = sentinel.get_connection_with_timeout(patience)?;
        connection.set_read_timeout(Some(patience))?;
        connection.set_write_timeout(Some(patience))?;
        let ask = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name).clone();
        let Some((host, port)) = ask.query::<Option<(String, u16)>>(&mut connection)? else {
            return Err((
                ErrorKind::MasterNameNotFoundBySentinel,
                "no Sentinel knows a primary of that name",
            )
                .into());
        };
        let address = match self.primary.addr() {
            ConnectionAddr::TcpTls { insecure, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: None }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        client(self.primary.clone().set_addr(address), self.certificates.as_ref())
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
            Open::Alone(connection) => command.query(connection),
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
            Open::Alone(_) => Ok(vec![self.call_within(Some(patience), command)?]),
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
            Open::Alone(connection) => {
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
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    if words.contains("unknown command") && words.contains("LOCK.") {
        return "the server has no LOCK commands: is the module loaded?".to_owned();
    }
    if error.kind() == ErrorKind::InvalidClientConfig && words.contains("did not parse") {
        return format!(
            "{words} (in a user or password, letters like / , : @ are written as %2F %2C %3A %40)"
        );
    }
    words
}
