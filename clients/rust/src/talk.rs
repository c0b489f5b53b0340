// SPDX-License-Identifier: MIT

//! A connection on which one thread asks and waits for the answer: what each begins as.

use std::io::{ErrorKind, Read, Result as IoResult, Write};
use std::net::{Shutdown, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use redis::io::tcp::socket2::{Domain, Socket, TcpKeepalive, Type};
use redis::{cmd, Cmd, ConnectionAddr, ConnectionInfo, Parser, Value};

use crate::error::{checked, Error, Result, FULL, NO_CONNECTION, SILENT};
use crate::mailbox::locked;
use crate::tls::{Config, Tls};

/// A socket, and what is between it and the calls.
pub(crate) struct Wire {
    pub(crate) socket: Socket,
    tls: Option<Tls>,
}

/// It reads what comes, and may be heard by nobody else.
pub(crate) struct Talk {
    wire: Wire,
    parser: Parser,
}

/// Ends the making of a connection, from another thread.
#[derive(Default)]
pub(crate) struct Breaker(Mutex<Breaking>);

#[derive(Default)]
struct Breaking {
    broken: bool,
    /// The socket that is being connected, or waits for its first answers.
    socket: Option<Socket>,
}

impl Breaker {
    /// What is being made is of no use, nor is what would be.
    pub(crate) fn break_off(&self) {
        let mut state = locked(&self.0);
        state.broken = true;
        if let Some(socket) = state.socket.take() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// It is made, or has failed. Nobody but its user has the socket then, so that it ends when that closes it.
    pub(crate) fn forget(&self) {
        locked(&self.0).socket = None;
    }

    fn concerns(&self, socket: &Socket) -> IoResult<()> {
        let mut state = locked(&self.0);
        if state.broken {
            return Err(ErrorKind::Interrupted.into());
        }
        state.socket = Some(socket.try_clone()?);
        Ok(())
    }
}

impl Wire {
    /// Ends it. The thread that reads hears of it, and closes the socket.
    pub(crate) fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Ends it by a reset, with which the system drops what it has not delivered yet: that would come to the server behind what
    /// is said on the next connection.
    pub(crate) fn reset(&self) {
        let _ = self.socket.set_linger(Some(Duration::ZERO));
        let _ = self.socket.shutdown(Shutdown::Read);
    }

    /// The same connection, for another thread.
    pub(crate) fn again(&self) -> IoResult<Wire> {
        Ok(Wire { socket: self.socket.try_clone()?, tls: self.tls.clone() })
    }

    /// Puts what is to be said into what is to be sent.
    pub(crate) fn seal(&self, plain: &[u8], out: &mut Vec<u8>) -> IoResult<()> {
        match &self.tls {
            Some(tls) => tls.seal(plain, out),
            None => {
                out.extend_from_slice(plain);
                Ok(())
            }
        }
    }
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> IoResult<usize> {
        match &self.tls {
            Some(tls) => tls.read(&mut self.socket, bytes),
            None => self.socket.read(bytes),
        }
    }
}

impl Talk {
    /// Connects, and says who we are. No step takes longer than `patience`.
    pub(crate) fn open(
        info: &ConnectionInfo,
        config: &Config,
        patience: Duration,
        breaker: &Breaker,
    ) -> Result<Talk> {
        let open = || -> IoResult<Wire> {
            let mut socket = connect(info, patience, breaker)?;
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
            let tls = match info.addr() {
                ConnectionAddr::TcpTls { host, .. } => Some(Tls::begin(host, config, &mut socket)?),
                _ => None,
            };
            Ok(Wire { socket, tls })
        };
        let wire = open().map_err(|error| no_connection(info, in_words(&error)))?;
        let mut talk = Talk { wire, parser: Parser::new() };
        talk.greet(info).map_err(|error| unreached(info, error))?;
        Ok(talk)
    }

    /// What comes before all calls. RESP2, in which a message comes as a reply does, is what a connection begins with.
    fn greet(&mut self, info: &ConnectionInfo) -> Result<()> {
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let mut auth = cmd("AUTH");
            settings.username().map(|name| auth.arg(name).clone());
            self.call(auth.arg(password))?;
        }
        if settings.db() != 0 {
            self.call(cmd("SELECT").arg(settings.db()))?;
        }
        // Only an answer tells that somebody is there who speaks this language, and has accepted our certificate. A long call of a
        // user who is not logged in would not even be read.
        match self.ask(&cmd("PING"))? {
            Value::ServerError(error) if HARMLESS.contains(&error.code()) => Ok(()),
            // It lets nobody in, or not this user, or not one more: it says so, and closes the connection.
            Value::ServerError(error) => checked(Value::ServerError(error)).map(drop),
            Value::SimpleString(pong) if pong == "PONG" => Ok(()),
            _ => Err(gone("it is no server of this kind")),
        }
    }

    /// Calls, and waits for the reply.
    pub(crate) fn call(&mut self, command: &Cmd) -> Result<Value> {
        checked(self.ask(command)?)
    }

    /// The same, whatever the reply.
    pub(crate) fn ask(&mut self, command: &Cmd) -> Result<Value> {
        let mut out = Vec::new();
        self.wire.seal(&command.get_packed_command(), &mut out).map_err(gone)?;
        self.wire.socket.write_all(&out).map_err(gone)?;
        self.read()
    }

    /// The next that comes.
    pub(crate) fn read(&mut self) -> Result<Value> {
        self.parser.parse_value(&mut self.wire).map_err(|error| {
            if error.is_timeout() {
                gone(SILENT)
            } else {
                gone(error)
            }
        })
    }

    /// What comes from now on may take its time, and another thread sends. By what it does is returned.
    pub(crate) fn share(&self) -> Result<Wire> {
        self.wire.socket.set_read_timeout(None).map_err(gone)?;
        self.wire.again().map_err(gone)
    }
}

/// For so long what was sent may go without a sign of its arrival. TCP itself would wait for a quarter of an hour.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNANSWERED: Duration = Duration::from_secs(15);

/// What a server may say to a `PING`, and carry out other calls all the same, or in a moment.
const HARMLESS: [&str; 5] = ["NOPERM", "LOADING", "MASTERDOWN", "BUSY", "READONLY"];

/// How the text begins if a connection ended.
const LOST: &str = "the connection is lost: ";

/// A connection that ended before it was of use is none.
pub(crate) fn unreached(info: &ConnectionInfo, error: Error) -> Error {
    match error {
        Error::Unavailable(why) if why.starts_with(LOST) || why.contains(FULL) => {
            no_connection(info, why.trim_start_matches(LOST))
        }
        said => said,
    }
}

/// Why a connection is ended that nobody uses.
pub(crate) const USELESS: &str = "it is of no use any more";

pub(crate) fn gone(why: impl std::fmt::Display) -> Error {
    Error::Unavailable(format!("{LOST}{why}"))
}

pub(crate) fn no_connection(info: &ConnectionInfo, why: impl std::fmt::Display) -> Error {
    Error::Unavailable(format!("{NO_CONNECTION} to {}: {why}", info.addr()))
}

fn in_words(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => SILENT.to_owned(),
        _ => error.to_string(),
    }
}

fn connect(info: &ConnectionInfo, patience: Duration, breaker: &Breaker) -> IoResult<Socket> {
    let (host, port) = match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.as_str(), *port),
        ConnectionAddr::Unix(path) => {
            let socket = UnixStream::connect(path)?.into();
            breaker.concerns(&socket)?;
            return Ok(socket);
        }
        _ => return Err(ErrorKind::Unsupported.into()),
    };
    let mut last = ErrorKind::NotFound.into();
    for address in (host, port).to_socket_addrs()? {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        breaker.concerns(&socket)?;
        match socket.connect_timeout(&address.into(), patience) {
            Ok(()) => {
                let settings = info.tcp_settings();
                socket.set_tcp_nodelay(true)?;
                // A server that is gone without a word is noticed also while nothing is sent: before it would have forgotten a
                // call, so that this can be sent again.
                let often = TcpKeepalive::new()
                    .with_time(Duration::from_secs(6))
                    .with_interval(Duration::from_secs(3))
                    .with_retries(3);
                socket.set_tcp_keepalive(settings.keepalive().unwrap_or(&often))?;
                #[cfg(any(target_os = "linux", target_os = "android"))]
                socket.set_tcp_user_timeout(Some(settings.user_timeout().unwrap_or(UNANSWERED)))?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
