// SPDX-License-Identifier: MIT

//! Locks of the redis-lock server module, for threads.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use redis_lock_client::{Error, Locks};
//!
//! # fn work(token: Option<u64>) {}
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = Locks::new(&redis::Client::open("redis://127.0.0.1/")?)?;
//!
//! // Waits its turn. Client and server renew the lease. It is given back at the end of the scope.
//! let hold = locks.lock("order:42").acquire()?;
//! drop(hold);
//!
//! let orders = locks.lock("order:42").wait(Duration::from_secs(2)).fence();
//! orders.with(|hold| {
//!     work(hold.token());
//!     Ok::<_, Error>(())
//! })?;
//! # Ok(()) }
//! ```
//!
//! All waits and holds of a process share two connections, which three threads look after.

#[cfg(not(unix))]
compile_error!("redis-lock-client needs the sockets of Unix");

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod clock;
mod error;
mod hold;
mod link;
mod lock;
mod mailbox;
mod server;
mod session;
mod talk;
mod timer;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Client, Cmd};

use error::SILENT;
pub use error::{Error, Result};
pub use hold::Hold;
pub use lock::Lock;
pub use mailbox::Canceller;
pub use server::Server;

use clock::{after, now};
use hold::Held;
use lock::{is_bound, How};
use session::Session;

/// What a listener hears, when an acquire or a hold has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The lock's [label](Lock::label).
    pub label: &'a str,
    /// `waited` or `held`.
    pub name: &'static str,
    /// Of `waited`: `granted`, or the [kind](Error::kind) of error. Of `held`: `released` or `lost`.
    pub outcome: &'static str,
    /// How long.
    pub time: Duration,
}

/// It is called in the thread in which it happens, which may be one on which all locks depend: it must not wait.
pub(crate) type Listener = dyn Fn(&Event<'_>) + Send + Sync;

/// Who hears of what disturbs a wait. It must not wait, either.
pub(crate) type OnTrouble = dyn Fn(&Error) + Send + Sync;

/// How the locks of a process are had.
#[derive(Default)]
#[must_use]
pub struct Settings {
    patience: Option<Duration>,
    listener: Option<Box<Listener>>,
    on_trouble: Option<Box<OnTrouble>>,
}

/// All locks of this process on one server, or on one cluster. Clones are the same one; threads may share it.
///
/// It ends with [`Locks::close`], or when the last clone, lock and hold of it are gone.
#[derive(Clone)]
pub struct Locks {
    handle: Arc<Handle>,
}

/// What all who need the session have: it ends with the last of them. And the name of this host.
pub(crate) struct Handle(pub(crate) Arc<Session>, pub(crate) String);

impl Settings {
    /// As nothing were said.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// How long a server may take for an answer, and a connection to be made. 5 s if nothing is said.
    pub fn patience(mut self, patience: Duration) -> Settings {
        self.patience = Some(patience);
        self
    }

    /// Who hears how long was waited, how long it was held, and how each ended. It must not wait, as it is called in the
    /// thread in which it happens.
    pub fn listener(mut self, listener: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Settings {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Who hears of what disturbs a wait that goes on: there is no connection, or the server starts. It must not wait.
    pub fn on_trouble(mut self, on_trouble: impl Fn(&Error) + Send + Sync + 'static) -> Settings {
        self.on_trouble = Some(Box::new(on_trouble));
        self
    }
}

impl Locks {
    /// The locks of the server that the client knows. Connections are made when they are needed, with the client's address,
    /// user, password and database.
    ///
    /// # Errors
    ///
    /// As [`Server::alone`].
    pub fn new(client: &Client) -> Result<Locks> {
        Locks::with_settings(client, Settings::new())
    }

    /// As [`Locks::new`], with settings.
    ///
    /// # Errors
    ///
    /// As [`Locks::new`].
    pub fn with_settings(client: &Client, settings: Settings) -> Result<Locks> {
        Ok(Locks::at(Server::alone(client.get_connection_info().clone())?, settings))
    }

    /// The locks of a server, of whoever is the primary among several, or of a cluster.
    #[must_use]
    pub fn at(server: Server, settings: Settings) -> Locks {
        let patience = settings.patience.unwrap_or(Duration::from_secs(5));
        let session = Session::new(server, patience, settings.listener, settings.on_trouble);
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = host.unwrap_or_else(|| "unknown".to_owned());
        Locks { handle: Arc::new(Handle(Arc::new(session), host)) }
    }

    /// A lock, whose key may be any bytes.
    pub fn lock(&self, key: impl Into<Vec<u8>>) -> Lock {
        Lock::new(Arc::clone(&self.handle), key.into())
    }

    /// Takes over the hold of an owner, from another process. With a lease it lasts so long; without one it is kept, and
    /// bound to this process. What is kept there must be kept here, too.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if this owner does not hold it; [`Error::Misuse`] if it is given a lease, and bound to a connection;
    /// [`Error::Unavailable`] if the last hold of this owner could not be given back yet.
    pub fn attach(
        &self,
        key: impl Into<Vec<u8>>,
        owner: &str,
        lease: impl Into<Option<Duration>>,
    ) -> Result<Hold> {
        let (session, key) = (&self.handle.0, key.into());
        if owner == "*" {
            return Err(Error::Misuse("the owner * means any, to the server".to_owned()));
        }
        let how = How::new(lease.into(), None, None, "")?;
        if !session.settles(&key, owner, after(session.patience)) {
            let key = String::from_utf8_lossy(&key);
            return Err(Error::Unavailable(format!("{key}: a hold of this owner is being given back")));
        }
        let bond = Arc::default();
        let call = |command: &Cmd| {
            let call = session.to(&key, command).with(&bond);
            session.call(&Arc::default(), call, after(session.patience))
        };
        // No renewal undoes a bond: it would end with that connection, whatever its lease is.
        if !how.keep && is_bound(&call(cmd("LOCK.INFO").arg(&key))?, owner) {
            let why = "the hold is bound to a connection: attach it without a lease";
            return Err(Error::Misuse(format!("{}: {why}", String::from_utf8_lossy(&key))));
        }
        let mut command = hold::renewal(&key, owner, how.lease);
        how.bind(&mut command, how.max_hold);
        let sent = now();
        let reply = call(&command);
        if matches!(&reply, Err(error) if error.text().ends_with(SILENT)) {
            // It may come to the server yet, and nobody would look after what is bound then.
            let last = hold::last_renewal(session, &key, owner, &how, how.lease);
            if let Some(last) = last.filter(|_| !session.has(&key, owner)) {
                session.follow(&bond, &last);
            }
        }
        reply?;
        let held = Held::begin(session, &key, owner.to_owned(), how, sent, sent, bond);
        Ok(Hold::new(held, None, Arc::clone(&self.handle)))
    }

    /// Ends all waits, what is held with `keep`, the connections and the threads. What is held without `keep` lasts for its
    /// lease, but not here. What is being given back or taken back has a second for that.
    pub fn close(&self) {
        self.handle.0.close();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locks").field("inbox", &self.handle.0.inbox).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("patience", &self.patience).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that says yes to everything.
    fn yes_sayer() -> Client {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                if bytes[..count].windows(4).any(|word| word == b"PING") {
                    stream.write_all(b"+PONG\r\n").unwrap();
                }
                let calls = bytes[..count].windows(5).filter(|word| word == b"LOCK.").count();
                stream.write_all(":1\r\n".repeat(calls).as_bytes()).unwrap();
            }
        });
        Client::open(("127.0.0.1", port)).unwrap()
    }

    #[test]
    fn nothing_is_remembered_of_a_hold_that_has_ended() {
        let locks = Locks::new(&yes_sayer()).unwrap();
        for round in 0..100 {
            let lock = locks.lock("a").lease(Duration::from_secs(3600)).keep(round % 2 == 0);
            let hold = lock.try_acquire().unwrap().unwrap();
            hold.extend(Duration::from_secs(7200)).unwrap();
            if round % 3 == 0 {
                hold.release().unwrap();
            }
        }
        // A look after the connection.
        assert!(locks.handle.0.timer.len() <= 1, "{}", locks.handle.0.timer.len());
    }
}
