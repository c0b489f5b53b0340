// SPDX-License-Identifier: MIT

//! A client that waits with `NOTIFY`: it calls, receives the grant as a message, and confirms it.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::RngExt;
use serde_json::Value;

use super::link::{Breakage, Line};
use super::Shared;
use crate::record::{Acquire, Command, Listened, Message, Micros, Outcome, Record, Release};
use crate::wire::{End, Wire};

/// A subscription to an inbox. Dropping it records the time span of the subscription.
pub(super) struct Inbox<'a> {
    shared: &'a Shared,
    name: String,
    wire: Wire,
    since: Micros,
}

impl<'a> Inbox<'a> {
    pub(super) fn listen(shared: &'a Shared, name: String) -> Option<Inbox<'a>> {
        let wire = Wire::connect(shared.server()).ok()?;
        let mut inbox = Inbox { shared, name, wire, since: shared.recorder.now() };
        inbox.wire.ask(&format!("SUBSCRIBE lock:inbox:{}", inbox.name))?;
        Some(inbox)
    }
}

impl Drop for Inbox<'_> {
    fn drop(&mut self) {
        let (inbox, since) = (std::mem::take(&mut self.name), self.since);
        let until = self.shared.recorder.now();
        self.shared.recorder.add(Record::Listened(Listened { inbox, since, until }));
    }
}

struct Listener<'a> {
    shared: &'a Shared,
    client: u32,
    line: Line<'a>,
    inbox: Option<Inbox<'a>>,
    rng: StdRng,
}

/// Runs the client. It makes a quarter as many calls as other clients, because it waits most of the time.
pub(super) fn run(shared: &Shared, client: u32) {
    let (line, rng) = (Line::new(shared, client), shared.rng(client));
    let mut listener = Listener { shared, client, line, inbox: None, rng };
    for call in 0..shared.settings.calls {
        if shared.is_late() {
            break;
        }
        if call % 4 == 0 {
            listener.lock_once(call);
        }
    }
}

impl<'a> Listener<'a> {
    fn lock_once(&mut self, call: u32) {
        self.inbox = self.inbox.take().or_else(|| self.listen());
        let owner = format!("n{}r{call}", self.client);
        let slot = self.rng.random_range(0..self.shared.settings.keys);
        let key = self.shared.key(slot, call);
        let acquire = Command::Acquire(Acquire {
            keys: vec![key.clone()],
            owner: owner.clone(),
            lease: Some(self.rng.random_range(50..400)),
            notify: Some(format!("inbox{}", self.client)),
            grace: Some(self.rng.random_range(20..200)),
            fence: self.rng.random_bool(0.5),
            shared: self.shared.settings.features.shared && self.rng.random_bool(0.3),
            id: Some(owner.clone()),
            ..Acquire::default()
        });
        let last_attempt = self.rng.random_range(0..10);
        for attempt in 0..40 {
            let broken = self.rng.random_range(0..1000) < self.shared.settings.broken;
            let breakage = broken.then_some(Breakage::Unread(Duration::from_millis(1), End::Close));
            match self.line.call(acquire.clone(), breakage) {
                Outcome::Reply(Value::Number(zero)) if zero.as_i64() == Some(0) => {}
                Outcome::Reply(_) => {
                    let release = Release {
                        keys: vec![key],
                        owner: owner.clone(),
                        id: Some(owner),
                        ..Release::default()
                    };
                    // With its ID, the release has one effect even if it is sent repeatedly.
                    for _ in 0..5 {
                        let sent = self.line.call(Command::Release(release.clone()), None);
                        if sent != Outcome::Unknown {
                            break;
                        }
                    }
                    return;
                }
                Outcome::Error(_) => break,
                Outcome::Unknown | Outcome::Unsent => {}
            }
            if attempt == last_attempt || self.shared.is_late() {
                break;
            }
            self.receive_message();
        }
        for _ in 0..5 {
            let cancel =
                Command::Cancel { key: key.clone(), owner: owner.clone(), id: owner.clone(), session: None };
            if self.line.call(cancel, None) != Outcome::Unknown {
                break;
            }
        }
    }

    fn listen(&self) -> Option<Inbox<'a>> {
        Inbox::listen(self.shared, format!("inbox{}", self.client))
    }

    /// Waits for a message or a timeout.
    fn receive_message(&mut self) {
        let within = Duration::from_millis(self.rng.random_range(2..200));
        let Some(inbox) = self.inbox.as_mut() else {
            self.inbox = self.listen();
            return;
        };
        match inbox.wire.receive(within) {
            Ok(Ok(Value::Array(parts))) => {
                let text = |n: usize| parts.get(n).and_then(Value::as_str).unwrap_or_default().to_owned();
                let (at, client) = (self.shared.recorder.now(), self.client);
                let message = Message { client, at, channel: text(1), text: text(2) };
                self.shared.recorder.add(Record::Message(message));
            }
            Ok(_) => {}
            Err(crate::wire::Silence::Late) => {}
            Err(crate::wire::Silence::Closed) => self.inbox = None,
        }
    }
}
