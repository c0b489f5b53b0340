// SPDX-License-Identifier: MIT

//! A connection on which calls wait for nothing: the replies come in the order of the calls, to a thread of its own.
//!
//! redis-rs' `Connection` cannot be read by one thread while others write. So the socket is ours; what goes over it is packed
//! and parsed by redis-rs, and sealed by rustls.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::libc;
use redis::{cmd, Value};

use crate::clock::{now, Moment};
use crate::error::{checked, Error, Result, SILENT};
use crate::mailbox::locked;
use crate::session::TRY_AGAIN;
use crate::talk::{gone, Breaker, Talk, Wire, USELESS};

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
    on_end: Box<dyn Fn(&Link) + Send + Sync>,
    /// When it was begun.
    begun: Moment,
    /// Ends it while it is being made.
    breaker: Breaker,
    /// One call has it for itself.
    alone: AtomicBool,
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// What was sent before comes to the server, and so does the end, if not now, then when the network is there again.
    Orderly,
    /// What was sent and not delivered is dropped.
    Reset,
}

struct State {
    phase: Phase,
    /// What is said before there is a connection.
    early: Vec<u8>,
    /// What the socket has not taken yet.
    out: Vec<u8>,
    /// Who waits for a reply, and until when.
    replies: VecDeque<(Moment, Then)>,
    /// Who waits for the connection.
    until_up: Vec<Then>,
    /// Whether somebody looks after calls without an answer.
    watched: bool,
    /// Since when there was a connection.
    up: Option<Moment>,
    /// Whether the server has said anything.
    answered: bool,
}

enum Phase {
    Connecting,
    Up(Wire),
    Down(Error, Moment),
}

impl Link {
    /// Begins to connect. Calls may be sent at once. An inbox is subscribed to before the connection counts as there.
    pub(crate) fn open(
        connect: impl FnOnce(&Breaker) -> Result<Talk> + Send + 'static,
        inbox: Option<(String, OnMessage)>,
        on_end: impl Fn(&Link) + Send + Sync + 'static,
    ) -> Result<(Arc<Link>, JoinHandle<()>)> {
        let state = State {
            phase: Phase::Connecting,
            early: Vec::new(),
            out: Vec::new(),
            replies: VecDeque::new(),
            until_up: Vec::new(),
            watched: false,
            up: None,
            answered: false,
        };
        let (inbox, on_message) = inbox.unzip();
        let link = Arc::new(Link {
            state: Mutex::new(state),
            on_message,
            on_end: Box::new(on_end),
            begun: now(),
            breaker: Breaker::default(),
            alone: AtomicBool::new(false),
        });
        let reader = Arc::clone(&link);
        let thread = thread::Builder::new().name("redis-lock-reader".to_owned()).spawn(move || {
            if let Err(error) = reader.run(connect, inbox.as_deref()) {
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

    pub(crate) fn set_alone(&self, alone: bool) {
        self.alone.store(alone, Ordering::Release);
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(locked(&self.state).phase, Phase::Up(_))
    }

    /// Whether anything can have been sent.
    pub(crate) fn was_up(&self) -> bool {
        locked(&self.state).up.is_some()
    }

    /// Whether it was there before the other was begun: who is reached by the other was the primary later.
    pub(crate) fn was_up_before(&self, other: &Link) -> bool {
        locked(&self.state).up.is_some_and(|up| up < other.begun)
    }

    /// Sends a call that is packed, whose reply is there by then. `asking` is that the server carries it out though it does not
    /// have the slot yet. True if the socket has not taken all: then [`Link::flush`] is to be called soon.
    #[must_use]
    pub(crate) fn send(&self, packed: &[u8], asking: bool, until: Moment, then: Then) -> bool {
        let mut state = locked(&self.state);
        if let Phase::Down(error, _) = &state.phase {
            let error = error.clone();
            drop(state);
            then(Err(error));
            return false;
        }
        if asking {
            state.replies.push_back((until, Box::new(|_| ())));
            state.say(&cmd("ASKING").get_packed_command());
        }
        state.replies.push_back((until, then));
        state.say(packed);
        state.flush()
    }

    /// Who waits for a reply is told this in its place. It serves for nothing else then: a reply that comes yet ends it.
    pub(crate) fn answer(&self, error: Error) {
        let waiting = locked(&self.state).replies.pop_back();
        if let Some((_, then)) = waiting {
            then(Err(error));
        }
    }

    /// Whether anybody waits for a reply.
    pub(crate) fn is_asked(&self) -> bool {
        !locked(&self.state).replies.is_empty()
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

    /// Gives the connection up if a call has had no answer in its time. Else returns when to look again, if at all.
    pub(crate) fn expire(&self) -> Option<Moment> {
        let mut state = locked(&self.state);
        // One may have less time than those before it.
        let Some(until) = state.replies.iter().map(|(until, _)| *until).min() else {
            state.watched = false;
            return None;
        };
        drop(state);
        if until <= now() {
            self.break_off(gone(SILENT));
            return None;
        }
        Some(until)
    }

    /// It is of no use any more, and nobody needs to hear of it but the server.
    pub(crate) fn discard(&self) {
        locked(&self.state).answered = false;
        self.finish(gone(USELESS), End::Orderly);
    }

    /// Ends it in order: what was sent before counts.
    pub(crate) fn close(&self, error: Error) {
        self.finish(error, End::Orderly);
    }

    /// Gives it up: nothing of what is not answered will be, nor comes to the server any more, if it can be helped.
    pub(crate) fn break_off(&self, error: Error) {
        self.finish(error, End::Reset);
    }

    fn finish(&self, error: Error, end: End) {
        let mut state = locked(&self.state);
        match std::mem::replace(&mut state.phase, Phase::Down(error.clone(), now())) {
            down @ Phase::Down(..) => {
                state.phase = down;
                return;
            }
            Phase::Up(wire) if end == End::Orderly => wire.end(),
            Phase::Up(wire) => wire.reset(),
            Phase::Connecting => self.breaker.break_off(),
        }
        state.out.clear();
        let replies = std::mem::take(&mut state.replies).into_iter().map(|(_, then)| then);
        let all: Vec<Then> = replies.chain(std::mem::take(&mut state.until_up)).collect();
        let answered = state.answered;
        drop(state);
        for then in all {
            then(Err(error.clone()));
        }
        // Else it was no connection that anybody could count on, and each tries again at his own pace.
        if answered {
            (self.on_end)(self);
        }
    }

    /// Connects, and reads until the end.
    fn run(&self, connect: impl FnOnce(&Breaker) -> Result<Talk>, inbox: Option<&str>) -> Result<()> {
        let talk = connect(&self.breaker).and_then(|mut talk| {
            if let Some(inbox) = inbox {
                talk.call(cmd("SUBSCRIBE").arg(format!("lock:inbox:{inbox}")))?;
            }
            Ok(talk)
        });
        self.breaker.forget();
        let mut talk = talk?;
        let wire = talk.share()?;
        let mut state = locked(&self.state);
        if !matches!(state.phase, Phase::Connecting) {
            return Ok(());
        }
        state.phase = Phase::Up(wire);
        state.up = Some(now());
        state.answered = inbox.is_some();
        let early = std::mem::take(&mut state.early);
        state.say(&early);
        let waiting = std::mem::take(&mut state.until_up);
        let mut stuck = state.flush();
        drop(state);
        waiting.into_iter().for_each(|then| then(Ok(Value::Okay)));
        while stuck {
            thread::sleep(Duration::from_millis(1));
            stuck = self.flush();
        }
        loop {
            self.got(talk.read()?)?;
        }
    }

    fn got(&self, value: Value) -> Result<()> {
        if let Some(on_message) = &self.on_message {
            // Whatever comes, be it a message or what it says to `PING`: it is there.
            locked(&self.state).replies.clear();
            if let Value::Array(words) = value {
                if let [_, _, Value::BulkString(text)] = words.as_slice() {
                    on_message(text);
                }
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
    fn say(&mut self, plain: &[u8]) {
        match &self.phase {
            Phase::Up(wire) if wire.seal(plain, &mut self.out).is_ok() => {}
            // The reader sees it, and tells all who wait.
            Phase::Up(wire) => wire.reset(),
            Phase::Connecting => self.early.extend_from_slice(plain),
            Phase::Down(..) => {}
        }
    }

    fn flush(&mut self) -> bool {
        let Phase::Up(wire) = &self.phase else { return false };
        let mut sent = 0;
        while let Some(rest) = self.out.get(sent..).filter(|rest| !rest.is_empty()) {
            match wire.socket.send_with_flags(rest, AT_ONCE) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        // The reader sees it, and tells all who wait.
                        wire.reset();
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
