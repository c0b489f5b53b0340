// SPDX-License-Identifier: MIT

//! A client's connection, which is replaced when it breaks. Records every call.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::{Promise, Shared};
use crate::record::{Call, Closed, Command, Micros, Opened, Outcome, Record};
use crate::wire::{Answer, End, Silence, Wire};

/// The way in which the connection of a call is broken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Breakage {
    /// Only this number of bytes is sent.
    Part(usize, End),
    /// The call is sent, and the connection is closed after this time, before the reply is read.
    Unread(Duration, End),
    /// The call is sent, and the connection is half-closed. A reply is read if one arrives.
    Half,
}

/// One connection.
pub(super) struct Link {
    wire: Wire,
    number: u64,
    pub(super) server_id: i64,
}

/// A call that was sent and has no reply yet.
pub(super) struct Pending {
    number: u64,
    sent: Micros,
    command: Command,
}

/// The successive connections of one client.
pub(super) struct Line<'a> {
    shared: &'a Shared,
    client: u32,
    link: Option<Link>,
    /// The server of this client, if it is not that of the other clients.
    at: Option<SocketAddr>,
    /// Time for which the client is suspended between its next call and the reading of the reply.
    pub(super) suspend_for: Duration,
}

impl Line<'_> {
    pub(super) fn new(shared: &Shared, client: u32) -> Line<'_> {
        Line { shared, client, link: None, at: None, suspend_for: Duration::ZERO }
    }

    /// Makes a call. The connection may be broken during the call.
    pub(super) fn call(&mut self, command: Command, breakage: Option<Breakage>) -> Outcome {
        let Some(breakage) = breakage else {
            let Some(pending) = self.send(command.clone()) else { return Outcome::Unsent };
            thread::sleep(std::mem::take(&mut self.suspend_for));
            return match self.receive(pending) {
                Outcome::Error(error) if error.starts_with("ASK ") => self.call_there(command, &error),
                outcome => outcome,
            };
        };
        match breakage {
            Breakage::Part(bytes, end) => {
                let Some(pending) = self.begin(command, Some(bytes)) else { return Outcome::Unsent };
                self.close(end);
                self.finish(pending, Outcome::Unsent, None)
            }
            Breakage::Unread(after, end) => {
                let Some(pending) = self.send(command) else { return Outcome::Unsent };
                thread::sleep(after);
                self.close(end);
                self.finish(pending, Outcome::Unknown, None)
            }
            Breakage::Half => {
                let Some(pending) = self.send(command) else { return Outcome::Unsent };
                let at = self.shared.recorder.now();
                let Some(link) = self.link.as_mut() else { return Outcome::Unsent };
                link.wire.end(End::Half);
                let answer = link.wire.receive(self.shared.settings.patience);
                let now = self.shared.recorder.now();
                self.ended(at, false);
                match answer {
                    Ok(answer) => self.finish(pending, outcome(answer), Some(now)),
                    Err(_) => self.finish(pending, Outcome::Unknown, None),
                }
            }
        }
    }

    /// Repeats a call at the node that a slot is moving to.
    fn call_there(&mut self, command: Command, error: &str) -> Outcome {
        let mut there = Line::new(self.shared, self.client);
        there.at = address(error);
        let asked = there.connect().and_then(|()| there.link.as_mut()?.wire.ask("ASKING"));
        if asked.is_none() {
            return Outcome::Unsent;
        }
        let Some(pending) = there.send(command) else { return Outcome::Unsent };
        there.receive(pending)
    }

    /// Sends a call completely. Returns `None` if the server is gone.
    pub(super) fn send(&mut self, command: Command) -> Option<Pending> {
        self.begin(command, None)
    }

    fn begin(&mut self, command: Command, at_most: Option<usize>) -> Option<Pending> {
        self.connect()?;
        let recorder = &self.shared.recorder;
        let words = command.words();
        let number = recorder.next_call();
        let sent = recorder.now();
        // If the write failed, reading the reply fails, too.
        let _ = self.link.as_mut()?.wire.send(&words, at_most);
        Some(Pending { number, sent, command })
    }

    /// Reads the reply within the client's patience.
    pub(super) fn receive(&mut self, pending: Pending) -> Outcome {
        let Some(link) = self.link.as_mut() else { return self.finish(pending, Outcome::Unknown, None) };
        let answer = link.wire.receive(self.shared.settings.patience).and_then(|answer| {
            let is_enough = self.shared.settings.promise.is_kept(&pending.command, &answer, &mut link.wire);
            is_enough.then_some(answer).ok_or(Silence::Closed)
        });
        match answer {
            Ok(answer) => {
                let now = self.shared.recorder.now();
                let outcome = outcome(answer);
                if let Outcome::Error(error) = &outcome {
                    if let Some(address) = address(error).filter(|_| error.starts_with("MOVED ")) {
                        self.shared.move_to(address);
                    }
                    if is_elsewhere(error) {
                        self.ended(now, false);
                    }
                }
                self.finish(pending, outcome, Some(now))
            }
            Err(silence) => {
                let now = self.shared.recorder.now();
                self.ended(now, silence == Silence::Closed);
                self.finish(pending, Outcome::Unknown, None)
            }
        }
    }

    fn finish(&mut self, pending: Pending, outcome: Outcome, answered: Option<Micros>) -> Outcome {
        let Pending { number, sent, command } = pending;
        // The client has one connection, which this call may have just lost.
        let connection = self.connection();
        let outcome_of_call = outcome.clone();
        let call = Call {
            number,
            client: self.client,
            connection,
            sent,
            answered,
            command,
            outcome: outcome_of_call,
        };
        // The call had no effect. It is repeated at another node.
        if !matches!(&outcome, Outcome::Error(error) if error.starts_with("ASK ")) {
            self.shared.recorder.add(Record::Call(call));
        }
        if matches!(&self.link, Some(link) if link.is_over()) {
            self.link = None;
        }
        outcome
    }

    /// The number of the current or the last connection.
    fn connection(&self) -> u64 {
        self.link.as_ref().map_or(u64::MAX, |link| link.number)
    }

    /// Closes the connection.
    pub(super) fn close(&mut self, end: End) {
        let at = self.shared.recorder.now();
        if let Some(link) = self.link.as_mut() {
            link.wire.end(end);
        }
        self.ended(at, false);
    }

    /// Closes the connection while a call waits on it.
    pub(super) fn abandon(&mut self, pending: Pending, end: End) {
        self.close(end);
        self.finish(pending, Outcome::Unknown, None);
    }

    /// Closes the connection while it has no call.
    pub(super) fn hang_up(&mut self, end: End) {
        self.close(end);
        self.link = None;
    }

    fn ended(&mut self, at: Micros, by_peer: bool) {
        if let Some(link) = self.link.as_mut().filter(|link| !link.is_over()) {
            link.forget(self.shared);
            self.shared.recorder.add(Record::Closed(Closed { connection: link.number, at, by_peer }));
            link.server_id = -1;
        }
    }

    fn connect(&mut self) -> Option<()> {
        if matches!(&self.link, Some(link) if link.is_over()) {
            self.link = None;
        }
        while self.link.is_none() {
            match self.try_connect() {
                Some(link) => {
                    link.register(self.shared);
                    self.link = Some(link);
                }
                // A killed server is restarted soon, unless the run is over.
                None if self.shared.is_late() || self.shared.is_over() => return None,
                None => thread::sleep(Duration::from_millis(5)),
            }
        }
        Some(())
    }

    fn try_connect(&self) -> Option<Link> {
        let recorder = &self.shared.recorder;
        let mut wire = Wire::connect(self.at.unwrap_or_else(|| self.shared.server())).ok()?;
        let server_id = wire.ask("CLIENT ID")?.as_i64()?;
        let number = recorder.next_connection();
        let at = recorder.now();
        recorder.add(Record::Opened(Opened { connection: number, client: self.client, at, server_id }));
        Some(Link { wire, number, server_id })
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.close(End::Close);
    }
}

impl Link {
    fn is_over(&self) -> bool {
        self.server_id == -1
    }
}

impl Promise {
    /// Waits for the acknowledgement that is required in addition to the reply.
    fn is_kept(self, command: &Command, answer: &Answer, wire: &mut Wire) -> bool {
        let has_changed = matches!(command, Command::Acquire(_) | Command::Renew(_))
            && answer.as_ref().is_ok_and(|reply| !reply.is_null());
        let Promise::Wait(replicas) = self else { return true };
        if !has_changed {
            return true;
        }
        wire.ask(&format!("WAIT {replicas} 200"))
            .is_some_and(|acknowledged| acknowledged.as_u64() >= Some(u64::from(replicas)))
    }
}

/// The address of the node in an error such as `MOVED slot host:port`.
fn address(error: &str) -> Option<SocketAddr> {
    error.split(' ').nth(2)?.parse().ok()
}

/// Whether the error says that the server is no longer the primary of this lock.
fn is_elsewhere(error: &str) -> bool {
    ["READONLY", "MASTERDOWN", "MOVED"].iter().any(|word| error.starts_with(word))
}

fn outcome(answer: Answer) -> Outcome {
    match answer {
        Ok(reply) => Outcome::Reply(reply),
        Err(error) => Outcome::Error(error),
    }
}
