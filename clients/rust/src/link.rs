// SPDX-License-Identifier: MIT

//! A connection on which calls wait for nothing: the replies come in the order of the calls, to a thread of its own.
//!
//! redis-rs' `Connection` cannot be read by one thread while others write. So the socket is ours; what goes over it is packed
//! and parsed by redis-rs.

use std::collections::VecDeque;
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::libc;
use redis::io::tcp::socket2::{Socket, TcpKeepalive};
use redis::{cmd, ConnectionAddr, ConnectionInfo, Parser, Value};

use crate::clock::{now, Moment};
use crate::error::{checked, Error, Result, NO_CONNECTION};
use crate::mailbox::locked;
use crate::session::TRY_AGAIN;

/// What is done with a reply. It runs in a thread of the session, and must not wait.
pub(crate) type Then = Box<dyn FnOnce(Result<Value>) + Send>;

/// What is done with the text of a message. It must not wait, either.
pub(crate) type OnMessage = Box<dyn Fn(&[u8]) + Send + Sync>;

// A server that does not read delays nobody but those who wait for its replies.
#[cfg(target_vendor = "apple")]
const AT_ONCE: libc::c_int = libc::MSG_DONTWAIT;
#[cfg(not(target_vendor = "apple"))]
const AT_ONCE: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

pub(crate) struct Link {
    state: Mutex<State>,
    /// Of a connection that is subscribed.
    on_message: Option<OnMessage>,
    on_end: Box<dyn Fn() + Send + Sync>,
}

struct State {
    phase: Phase,
    /// What the socket has not taken yet.
    out: Vec<u8>,
    /// Who waits for a reply, and since when.
    replies: VecDeque<(Moment, Then)>,
    /// Who waits for the connection.
    until_up: Vec<Then>,
    /// Whether somebody looks after calls without an answer.
    watched: bool,
    /// Whether the server has said anything.
    answered: bool,
}

enum Phase {
    Connecting,
    Up(Socket),
    Down(Error, Moment),
}

impl Link {
    /// Begins to connect. Calls may be sent at once. An inbox is subscribed to before the connection counts as there.
    pub(crate) fn open(
        info: ConnectionInfo,
        patience: Duration,
        inbox: Option<(String, OnMessage)>,
        on_end: impl Fn() + Send + Sync + 'static,
    ) -> Result<(Arc<Link>, JoinHandle<()>)> {
        let state = State {
            phase: Phase::Connecting,
            out: Vec::new(),
            replies: VecDeque::new(),
            until_up: Vec::new(),
            watched: false,
            answered: false,
        };
        let (inbox, on_message) = inbox.unzip();
        let link = Arc::new(Link { state: Mutex::new(state), on_message, on_end: Box::new(on_end) });
        let reader = Arc::clone(&link);
        let thread = thread::Builder::new().name("redis-lock-reader".to_owned()).spawn(move || {
            if let Err(error) = reader.run(&info, patience, inbox.as_deref()) {
                reader.break_off(error);
            }
        });
        Ok((link, thread.map_err(|error| Error::Unavailable(format!("no thread: {error}")))?))
    }

    /// Whether it can be used; nothing if it is time for another.
    pub(crate) fn usable(&self) -> Option<Result<()>> {
        let state = locked(&self.state);
        match &state.phase {
            Phase::Connecting | Phase::Up(_) => Some(Ok(())),
            // Whoever tries again right now would not fare better, however many there are.
            Phase::Down(error, since) if !state.answered && *since + TRY_AGAIN / 2 > now() => {
                Some(Err(error.clone()))
            }
            Phase::Down(..) => None,
        }
    }

    /// Sends a call that is packed. True if the socket has not taken all: then [`Link::flush`] is to be called soon.
    #[must_use]
    pub(crate) fn send(&self, packed: &[u8], then: Then) -> bool {
        let mut state = locked(&self.state);
        if let Phase::Down(error, _) = &state.phase {
            let error = error.clone();
            drop(state);
            then(Err(error));
            return false;
        }
        state.replies.push_back((now(), then));
        state.out.extend_from_slice(packed);
        state.flush()
    }

    /// Sends what was left over. True if something still is.
    #[must_use]
    pub(crate) fn flush(&self) -> bool {
        locked(&self.state).flush()
    }

    /// Waits for the connection.
    pub(crate) fn when_up(&self, then: Then) {
        let mut state = locked(&self.state);
        let result = match &state.phase {
            Phase::Connecting => return state.until_up.push(then),
            Phase::Up(_) => Ok(Value::Okay),
            Phase::Down(error, _) => Err(error.clone()),
        };
        drop(state);
        then(result);
    }

    /// True if nobody looks after calls without an answer yet: whoever asked does now, by [`Link::expire`].
    #[must_use]
    pub(crate) fn watch(&self) -> bool {
        let mut state = locked(&self.state);
        !state.replies.is_empty() && !std::mem::replace(&mut state.watched, true)
    }

    /// Gives the connection up if a call has had no answer for that long. Else returns when to look again, if at all.
    pub(crate) fn expire(&self, patience: Duration) -> Option<Moment> {
        let mut state = locked(&self.state);
        let Some((sent, _)) = state.replies.front() else {
            state.watched = false;
            return None;
        };
        let until = sent.saturating_add(patience);
        drop(state);
        if until <= now() {
            self.break_off(gone("the server does not answer"));
            return None;
        }
        Some(until)
    }

    /// Nothing of what is not answered will be. The server hears of it at once.
    pub(crate) fn break_off(&self, error: Error) {
        let mut state = locked(&self.state);
        match std::mem::replace(&mut state.phase, Phase::Down(error.clone(), now())) {
            down @ Phase::Down(..) => {
                state.phase = down;
                return;
            }
            Phase::Up(socket) => drop(socket.shutdown(Shutdown::Both)),
            Phase::Connecting => {}
        }
        let replies = std::mem::take(&mut state.replies).into_iter().map(|(_, then)| then);
        let all: Vec<Then> = replies.chain(std::mem::take(&mut state.until_up)).collect();
        let answered = state.answered;
        drop(state);
        for then in all {
            then(Err(error.clone()));
        }
        // Else it was no connection that anybody could count on, and each tries again at his own pace.
        if answered {
            (self.on_end)();
        }
    }

    /// Connects, and reads until the end.
    fn run(&self, info: &ConnectionInfo, patience: Duration, inbox: Option<&str>) -> Result<()> {
        let socket = connect(info, patience)
            .map_err(|error| Error::Unavailable(format!("{NO_CONNECTION} to {}: {error}", info.addr())))?;
        let mut reader = socket.try_clone().map_err(gone)?;
        let mut parser = Parser::new();
        greet(&mut reader, &mut parser, info, patience, inbox)?;
        let mut state = locked(&self.state);
        if !matches!(state.phase, Phase::Connecting) {
            return Ok(());
        }
        state.phase = Phase::Up(socket);
        state.answered = inbox.is_some();
        let waiting = std::mem::take(&mut state.until_up);
        let mut stuck = state.flush();
        drop(state);
        waiting.into_iter().for_each(|then| then(Ok(Value::Okay)));
        while stuck {
            thread::sleep(Duration::from_millis(1));
            stuck = self.flush();
        }
        loop {
            self.got(read(&mut parser, &mut reader)?)?;
        }
    }

    fn got(&self, value: Value) -> Result<()> {
        if let (Some(on_message), Value::Array(words)) = (&self.on_message, &value) {
            if let [_, _, Value::BulkString(text)] = words.as_slice() {
                on_message(text);
            }
            return Ok(());
        }
        let mut state = locked(&self.state);
        state.answered = true;
        let Some((_, then)) = state.replies.pop_front() else {
            return Err(gone("a reply that nobody asked for"));
        };
        drop(state);
        then(checked(value));
        Ok(())
    }
}

impl State {
    fn flush(&mut self) -> bool {
        let Phase::Up(socket) = &self.phase else { return false };
        let mut sent = 0;
        while let Some(rest) = self.out.get(sent..).filter(|rest| !rest.is_empty()) {
            match socket.send_with_flags(rest, AT_ONCE) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        // The reader sees it, and tells all who wait.
                        let _ = socket.shutdown(Shutdown::Both);
                        self.out.clear();
                        return false;
                    }
                    break;
                }
            }
        }
        self.out.drain(..sent);
        !self.out.is_empty()
    }
}

fn gone(why: impl std::fmt::Display) -> Error {
    Error::Unavailable(format!("the connection is lost: {why}"))
}

fn read(parser: &mut Parser, socket: &mut Socket) -> Result<Value> {
    parser.parse_value(socket).map_err(gone)
}

/// Whether the address is one that [`connect`] knows.
pub(crate) fn is_supported(address: &ConnectionAddr) -> bool {
    matches!(address, ConnectionAddr::Tcp(..) | ConnectionAddr::Unix(_))
}

fn connect(info: &ConnectionInfo, patience: Duration) -> std::io::Result<Socket> {
    let (host, port) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => (host.as_str(), *port),
        ConnectionAddr::Unix(path) => return Ok(UnixStream::connect(path)?.into()),
        _ => return Err(ErrorKind::Unsupported.into()),
    };
    let mut last = ErrorKind::NotFound.into();
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => {
                let socket = Socket::from(stream);
                socket.set_tcp_nodelay(true)?;
                // A server that is gone without a word is noticed also while nothing is sent.
                let often = TcpKeepalive::new().with_time(Duration::from_secs(15));
                socket.set_tcp_keepalive(info.tcp_settings().keepalive().unwrap_or(&often))?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What comes before all calls. RESP2, in which a message comes as a reply does, is what a connection begins with.
fn greet(
    socket: &mut Socket,
    parser: &mut Parser,
    info: &ConnectionInfo,
    patience: Duration,
    inbox: Option<&str>,
) -> Result<()> {
    let settings = info.redis_settings();
    let mut calls = Vec::new();
    if let Some(password) = settings.password() {
        let mut auth = cmd("AUTH");
        settings.username().map(|name| auth.arg(name).clone());
        calls.push(auth.arg(password).clone());
    }
    if settings.db() != 0 {
        calls.push(cmd("SELECT").arg(settings.db()).clone());
    }
    if let Some(inbox) = inbox {
        calls.push(cmd("SUBSCRIBE").arg(format!("lock:inbox:{inbox}")).clone());
    }
    socket.set_read_timeout(Some(patience)).map_err(gone)?;
    for call in calls {
        socket.write_all(&call.get_packed_command()).map_err(gone)?;
        checked(read(parser, socket)?)?;
    }
    socket.set_read_timeout(None).map_err(gone)
}
