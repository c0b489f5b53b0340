// SPDX-License-Identifier: MIT

//! Where a server is, as said at a command line: alone, behind Sentinel or in a cluster.

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

/// The certificates that the command line names, in PEM.
pub(crate) struct Certificates {
    pub(crate) authority: Option<Vec<u8>>,
    /// The certificate that is shown, and its private key.
    pub(crate) own: Option<(Vec<u8>, Vec<u8>)>,
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

    /// The server that has the locks. Nothing is asked of the network yet.
    ///
    /// # Errors
    ///
    /// If a URL makes no sense, or a file with a certificate cannot be read.
    pub fn server(&self) -> Result<Server, String> {
        self.server_with(&self.certificates()?)
    }

    pub(crate) fn server_with(&self, certificates: &Certificates) -> Result<Server, String> {
        let nodes = self.nodes()?;
        let first = nodes.first().cloned().ok_or("no URL")?;
        let server = if self.cluster {
            Server::cluster(nodes)
        } else if let Some(name) = &self.sentinel {
            // User, password and db of the URL are the server's.
            let mut asked = RedisConnectionInfo::default();
            if let Some(password) = &self.sentinel_password {
                asked = asked.set_password(password);
            }
            let sentinels = nodes.into_iter().map(|node| node.set_redis_settings(asked.clone()));
            Server::sentinel(sentinels, name, first)
        } else if nodes.len() > 1 {
            return Err("several URLs, and neither --cluster nor --sentinel".to_owned());
        } else {
            Server::alone(first)
        };
        let server = server.map_err(|error| error.text().to_owned())?;
        Ok(match certificates.tls()? {
            Some(config) => server.tls(config),
            None => server,
        })
    }

    /// The nodes of the cluster, if it is one.
    pub(crate) fn cluster(&self) -> Result<Option<Vec<ConnectionInfo>>, String> {
        self.cluster.then(|| self.nodes()).transpose()
    }

    pub(crate) fn certificates(&self) -> Result<Certificates, String> {
        // There is one in this program, so it is no matter if somebody was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let read = |path: &Option<PathBuf>| {
            let read =
                |path: &PathBuf| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
            path.as_ref().map(read).transpose()
        };
        let own = read(&self.cert)?.zip(read(&self.key_file)?);
        Ok(Certificates { authority: read(&self.cacert)?, own })
    }

    fn nodes(&self) -> Result<Vec<ConnectionInfo>, String> {
        self.url.iter().map(|url| node(url)).collect()
    }
}

impl Certificates {
    /// Nothing if the command line names none: what the system trusts is trusted.
    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, String> {
        if self.authority.is_none() && self.own.is_none() {
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
                    return Err("--cacert: there is no certificate in it".to_owned());
                }
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some((certificate, key)) = &self.own else {
            return Ok(Some(config.with_no_client_auth().into()));
        };
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("--cert: {error}"))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("--key: {error}"))?;
        let config = config.with_client_auth_cert(chain, key).map_err(|error| format!("--cert: {error}"))?;
        Ok(Some(config.into()))
    }
}

/// What a URL says; the password is from `REDISCLI_AUTH` if it has none, as with redis-cli.
fn node(url: &str) -> Result<ConnectionInfo, String> {
    let node = url.into_connection_info().map_err(|error| {
        let words = error.to_string();
        if words.contains("did not parse") {
            format!("{words} (in a user or password, letters like / , : @ are written as %2F %2C %3A %40)")
        } else {
            words
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

/// A server that is gone without a word is noticed within fifteen seconds, also while nothing is sent.
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

/// What the server says, for one who may not know that it has no locks.
#[must_use]
pub fn explained(words: &str) -> String {
    if words.contains("unknown command") && words.contains("LOCK.") {
        return "the server has no LOCK commands: is the module loaded?".to_owned();
    }
    words.to_owned()
}
