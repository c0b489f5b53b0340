// SPDX-License-Identifier: MIT

//! The server options of a command line: a single server, a Sentinel setup or a cluster.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use clap::{Args, ValueHint};
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    TlsCertificates,
};
use redis_lock_client::Server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::CertificateDer;
use socket2::TcpKeepalive;

/// The maximum time for the reply to a call that does not block.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The options that select the server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerOptions {
    /// The URL of the server, or several URLs.
    #[arg(
        short,
        long,
        help = concat!(
            "The URL of the server: redis://[user:password@]host[:port][/db], with TLS rediss://…, or unix:///path?db=n. ",
            "Several URLs, separated by commas, for --cluster and --sentinel"
        ),
        env = "REDIS_URL",
        hide_env_values = true,
        default_value = "redis://127.0.0.1:6379",
        value_delimiter = ',',
        value_hint = ValueHint::Url
    )]
    url: Vec<String>,

    /// The URLs are those of nodes of a cluster.
    #[arg(long, conflicts_with = "sentinel")]
    cluster: bool,

    /// The URLs are those of Sentinels, which know the primary under this name. User, password and database of the URL apply to
    /// the primary.
    #[arg(long, value_name = "NAME")]
    sentinel: Option<String>,

    /// The password of the Sentinels.
    #[arg(
        long,
        value_name = "PASSWORD",
        env = "SENTINEL_PASSWORD",
        hide_env_values = true,
        requires = "sentinel"
    )]
    sentinel_password: Option<String>,

    /// The CA certificate that signs the server certificates, instead of those of the system.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cacert: Option<PathBuf>,

    /// The client certificate.
    #[arg(long, value_name = "FILE", requires = "key_file", value_hint = ValueHint::FilePath)]
    cert: Option<PathBuf>,

    /// The private key of --cert.
    #[arg(long = "key", id = "key_file", value_name = "FILE", requires = "cert", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
}

impl ServerOptions {
    /// The addresses without passwords.
    #[must_use]
    pub fn address(&self) -> String {
        let nodes = self
            .url
            .iter()
            .map(|url| node(url).map_or_else(|_| "?".to_owned(), |node| node.addr().to_string()));
        nodes.collect::<Vec<_>>().join(",")
    }

    /// The server and its database, without passwords. Equal options mean the same locks.
    #[must_use]
    pub fn database(&self) -> String {
        let db = self.url.first().and_then(|url| Some(node(url).ok()?.redis_settings().db()));
        format!("{} {:?} {}", self.address(), self.sentinel, db.unwrap_or_default())
    }

    /// The server with the locks. Does not use the network yet.
    ///
    /// # Errors
    ///
    /// If a URL is invalid, or a file with a certificate cannot be read.
    pub fn server(&self) -> Result<Server, String> {
        let (nodes, certificates) = (self.nodes()?, self.certificates()?);
        let client = |node| client(node, certificates.as_ref());
        if (self.cluster || self.sentinel.is_some()) && nodes.iter().any(is_unix) {
            return Err("a node of a cluster or a Sentinel has a host and a port".to_owned());
        }
        let first = client(nodes.first().cloned().ok_or("URL is missing")?)?;
        if self.cluster {
            let nodes: Result<Vec<Client>, String> = nodes.into_iter().map(client).collect();
            return Ok(Server::cluster(nodes?));
        }
        let Some(name) = &self.sentinel else {
            if nodes.len() > 1 {
                return Err("several URLs need --cluster or --sentinel".to_owned());
            }
            return Ok(first.into());
        };
        // User, password and database of the URL apply to the primary, not to the Sentinels.
        let mut settings = RedisConnectionInfo::default();
        if let Some(password) = &self.sentinel_password {
            settings = settings.set_password(password);
        }
        let sentinels = nodes.into_iter().map(|node| client(node.set_redis_settings(settings.clone())));
        Ok(Server::sentinel(sentinels.collect::<Result<Vec<_>, _>>()?, name, first))
    }

    /// Whether another server may take over from the present one.
    #[must_use]
    pub fn may_fail_over(&self) -> bool {
        self.cluster || self.sentinel.is_some()
    }

    /// The nodes of the cluster, with `--cluster`.
    pub(crate) fn cluster(&self) -> Result<Option<Vec<ConnectionInfo>>, String> {
        self.cluster.then(|| self.nodes()).transpose()
    }

    /// The certificates of the command line. Without any, the client uses those of the system.
    pub(crate) fn certificates(&self) -> Result<Option<TlsCertificates>, String> {
        // Fails only if a provider is already installed, which is then the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = |path: &Option<PathBuf>| {
            let read =
                |path: &PathBuf| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
            path.as_ref().map(read).transpose()
        };
        let root_cert = read(&self.cacert)?;
        if root_cert.as_ref().is_some_and(|pem| CertificateDer::pem_slice_iter(pem).next().is_none()) {
            return Err("--cacert: file contains no certificate".to_owned());
        }
        let client = read(&self.cert)?.zip(read(&self.key_file)?);
        let client_tls = client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok((root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates { client_tls, root_cert }))
    }

    fn nodes(&self) -> Result<Vec<ConnectionInfo>, String> {
        self.url.iter().map(|url| node(url)).collect()
    }
}

/// A client for a node, with the certificates of the command line if it uses TLS.
pub(crate) fn client(node: ConnectionInfo, certificates: Option<&TlsCertificates>) -> Result<Client, String> {
    let client = match (certificates, node.addr()) {
        (Some(certificates), ConnectionAddr::TcpTls { .. }) => {
            Client::build_with_tls(node, certificates.clone())
        }
        _ => Client::open(node),
    };
    client.map_err(|error| error.to_string())
}

fn is_unix(node: &ConnectionInfo) -> bool {
    matches!(node.addr(), ConnectionAddr::Unix(_))
}

/// Parses a URL. Without a password, uses that of `REDISCLI_AUTH`, as redis-cli does.
fn node(url: &str) -> Result<ConnectionInfo, String> {
    let node = url.into_connection_info().map_err(|error| {
        let text = error.to_string();
        if text.contains("did not parse") {
            format!("{text} (in a user or password, encode / , : @ as %2F %2C %3A %40)")
        } else {
            text
        }
    })?;
    let node = node.set_tcp_settings(tcp());
    let settings = node.redis_settings().clone();
    Ok(match (settings.password(), env::var("REDISCLI_AUTH")) {
        (None, Ok(password)) if !password.is_empty() => {
            node.set_redis_settings(settings.set_password(password))
        }
        _ => node,
    })
}

/// Settings that detect a dead peer within fifteen seconds, even on an idle connection.
pub(crate) fn tcp() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(6))
        .with_interval(Duration::from_secs(3))
        .with_retries(3);
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(Duration::from_secs(15))
}

/// The text of an error, or advice if the server has no LOCK commands.
#[must_use]
pub fn explain(text: &str) -> String {
    if text.contains("unknown command") && text.contains("LOCK.") {
        return "server has no LOCK commands; load the redis-lock module".to_owned();
    }
    if text.contains("UnknownIssuer") {
        return format!("{text}: no known CA has signed the server's certificate; pass its CA with --cacert");
    }
    if text.contains("CaUsedAsEndEntity") {
        return format!(
            "{text}: the server uses a CA certificate as its own; sign a server certificate with that CA, or create \
             the self-signed one with basicConstraints=CA:FALSE"
        );
    }
    text.to_owned()
}
