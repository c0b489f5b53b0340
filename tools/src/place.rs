// SPDX-License-Identifier: MIT

//! The server options of a command line: a single server, a Sentinel setup or a cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use clap::{Args, ValueHint};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use redis_lock_client::Server;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
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

/// The certificates of the command line, in PEM.
pub(crate) struct Certificates {
    pub(crate) authority: Option<Vec<u8>>,
    /// The client certificate and its private key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
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

    /// The server with the locks. Does not use the network yet.
    ///
    /// # Errors
    ///
    /// If a URL is invalid, or a file with a certificate cannot be read.
    pub fn server(&self) -> Result<Server, String> {
        self.server_with(&self.certificates()?)
    }

    pub(crate) fn server_with(&self, certificates: &Certificates) -> Result<Server, String> {
        let nodes = self.nodes()?;
        let first = nodes.first().cloned().ok_or("URL is missing")?;
        let server = if self.cluster {
            Server::cluster(nodes)
        } else if let Some(name) = &self.sentinel {
            // User, password and database of the URL apply to the primary, not to the Sentinels.
            let mut settings = RedisConnectionInfo::default();
            if let Some(password) = &self.sentinel_password {
                settings = settings.set_password(password);
            }
            let sentinels = nodes.into_iter().map(|node| node.set_redis_settings(settings.clone()));
            Server::sentinel(sentinels, name, first)
        } else if nodes.len() > 1 {
            return Err("several URLs need --cluster or --sentinel".to_owned());
        } else {
            Server::alone(first)
        };
        let server = server.map_err(|error| error.text().to_owned())?;
        Ok(match certificates.tls()? {
            Some(config) => server.tls(config),
            None => server,
        })
    }

    /// The nodes of the cluster, with `--cluster`.
    pub(crate) fn cluster(&self) -> Result<Option<Vec<ConnectionInfo>>, String> {
        self.cluster.then(|| self.nodes()).transpose()
    }

    pub(crate) fn certificates(&self) -> Result<Certificates, String> {
        // Fails only if a provider is already installed, which is then the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = |path: &Option<PathBuf>| {
            let read =
                |path: &PathBuf| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
            path.as_ref().map(read).transpose()
        };
        let client = read(&self.cert)?.zip(read(&self.key_file)?);
        Ok(Certificates { authority: read(&self.cacert)?, client })
    }

    fn nodes(&self) -> Result<Vec<ConnectionInfo>, String> {
        self.url.iter().map(|url| node(url)).collect()
    }
}

impl Certificates {
    /// `None` without certificates on the command line: the client then uses those of the system.
    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, String> {
        if self.authority.is_none() && self.client.is_none() {
            return Ok(None);
        }
        let mut roots = RootCertStore::empty();
        match &self.authority {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.map_err(|error| format!("--cacert: {error}"))?;
                    roots.add(certificate).map_err(|error| format!("--cacert: {error}"))?;
                }
                if roots.is_empty() {
                    return Err("--cacert: file contains no certificate".to_owned());
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some((certificate, key)) = &self.client else {
            return Ok(Some(config.with_no_client_auth().into()));
        };
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("--cert: {error}"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("--key: {error}"))?;
        let config = config.with_client_auth_cert(chain, key).map_err(|error| format!("--cert: {error}"))?;
        Ok(Some(config.into()))
    }
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
    text.to_owned()
}
