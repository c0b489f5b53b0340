// SPDX-License-Identifier: MIT

//! TLS between the calls and the socket: one thread reads, others send.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::{Arc, Mutex, OnceLock};

use redis::io::tcp::socket2::Socket;
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::mailbox::locked;

/// What the caller wants to be looked at; nothing is: the authorities that the system trusts.
pub(crate) type Config = Option<Arc<ClientConfig>>;

/// One connection. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Mutex<State>>);

struct State {
    connection: ClientConnection,
    /// What has come, and is not looked at.
    came: Vec<u8>,
}

impl Tls {
    /// Looks at the server's certificate. The socket says how long that may take.
    pub(crate) fn begin(host: &str, config: &Config, socket: &mut Socket) -> Result<Tls> {
        let config = config.clone().map_or_else(trusting_the_systems, Ok)?;
        let name = ServerName::try_from(host.to_owned()).map_err(Error::other)?;
        let mut connection = ClientConnection::new(config, name).map_err(Error::other)?;
        // Who calls limits what is waiting to be sent, if anybody.
        connection.set_buffer_limit(None);
        while connection.is_handshaking() {
            connection.complete_io(socket)?;
        }
        Ok(Tls(Arc::new(Mutex::new(State { connection, came: Vec::new() }))))
    }

    /// Puts what is to be said into what is to be sent.
    pub(crate) fn seal(&self, plain: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let connection = &mut locked(&self.0).connection;
        connection.writer().write_all(plain)?;
        while connection.wants_write() {
            connection.write_tls(out)?;
        }
        Ok(())
    }

    /// Waits for something that was said. Nobody who sends waits meanwhile.
    pub(crate) fn read(&self, socket: &mut Socket, plain: &mut [u8]) -> Result<usize> {
        let mut bytes = [0; 4096];
        loop {
            let mut state = locked(&self.0);
            match state.connection.reader().read(plain) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if state.came.is_empty() {
                drop(state);
                let count = socket.read(&mut bytes)?;
                state = locked(&self.0);
                state.came.extend_from_slice(bytes.get(..count).unwrap_or_default());
            }
            // It takes as much as it has room for. An end of the connection is told by the next look.
            let State { connection, came } = &mut *state;
            let taken = connection.read_tls(&mut came.as_slice())?;
            came.drain(..taken);
            connection.process_new_packets().map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        }
    }
}

fn trusting_the_systems() -> Result<Arc<ClientConfig>> {
    static ONCE_READ: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = ONCE_READ.get() {
        return Ok(Arc::clone(config));
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if let (true, Some(error)) = (roots.is_empty(), found.errors.into_iter().next()) {
        return Err(Error::other(error));
    }
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(Error::other)?.with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::clone(ONCE_READ.get_or_init(|| Arc::new(config))))
}
