// SPDX-License-Identifier: MIT

//! Scenes with a session. Its reader is the first connection.

use serde_json::Value;

use super::scenes::{Stage, LONG, SHORT};
use crate::record::{Acquire, Command, Events, Number, OpenSession, Outcome, Release};
use crate::wire::End;

/// Grants in flight are revoked after this time, in milliseconds.
const OVERDUE: i64 = 5_000;

/// The session of a scene.
struct Presence {
    id: String,
    beat: i64,
    seq: i64,
}

impl Presence {
    fn open(stage: &mut Stage<'_>, grace: i64) -> Option<Presence> {
        let open = OpenSession { session_id: None, beat: 1, ttl: LONG, grace };
        let Outcome::Reply(opened) = stage.call(0, Command::OpenSession(open)) else { return None };
        Some(Presence { id: opened.get(0)?.as_str()?.to_owned(), beat: 1, seq: 0 })
    }

    fn number(&self, n: i64) -> Option<Number> {
        Some(Number { id: self.id.clone(), n })
    }

    fn resume(&mut self, stage: &mut Stage<'_>) {
        self.beat += 1;
        let session_id = Some(self.id.clone());
        stage.call(
            0,
            Command::OpenSession(OpenSession { session_id, beat: self.beat, ..OpenSession::default() }),
        );
    }

    /// Reads the events. All numbers stay above `done`.
    fn events(&mut self, stage: &mut Stage<'_>, within: i64) {
        self.beat += 1;
        let (session_id, beat, seq) = (self.id.clone(), self.beat, self.seq);
        let events = Events { session_id, beat, seq, done: 1, within, count: 1_000 };
        if let Outcome::Reply(Value::Array(events)) = stage.call(0, Command::Events(events)) {
            let last = events.last().and_then(|event| event.get(0)?.as_i64());
            self.seq = last.unwrap_or(self.seq);
        }
    }

    fn close(self, stage: &mut Stage<'_>) {
        stage.call(0, Command::CloseSession { session_id: self.id });
    }
}

fn acquire(stage: &Stage<'_>, owner: &str, key: &str, number: Option<Number>) -> Acquire {
    Acquire { lease: None, ephemeral: true, session: number, ..stage.acquire(owner, &[key]) }
}

fn release(stage: &mut Stage<'_>, line: usize, of: &Acquire) {
    let (keys, owner, session) = (of.keys.clone(), of.owner.clone(), of.session.clone());
    stage.call(line, Command::Release(Release { keys, owner, session, ..Release::default() }));
}

/// A release arrives again when the owner has a later hold.
pub(super) fn a_late_release_of_a_number(stage: &mut Stage<'_>) {
    let Some(mut presence) = Presence::open(stage, LONG / 8) else { return };
    let [first, second] = [1, 2].map(|n| acquire(stage, "a", "x", presence.number(n)));
    stage.take(1, first.clone());
    release(stage, 1, &first);
    stage.take(1, second.clone());
    presence.events(stage, 0);
    release(stage, 2, &first);
    stage.take(2, first);
    stage.check(1, "a", "x");
    stage.take(3, stage.acquire("b", &["x"]));
    release(stage, 1, &second);
    presence.close(stage);
}

/// The reader's connection breaks, and the client resumes the session in time.
pub(super) fn a_session_that_is_resumed(stage: &mut Stage<'_>) {
    let Some(mut presence) = Presence::open(stage, 2 * SHORT) else { return };
    let held = acquire(stage, "a", "x", presence.number(1));
    stage.take(1, held.clone());
    presence.events(stage, 0);
    stage.lines[0].hang_up(End::Close);
    presence.resume(stage);
    for _ in 0..8 {
        presence.events(stage, SHORT / 2);
    }
    stage.check(1, "a", "x");
    stage.take(3, stage.acquire("b", &["x"]));
    release(stage, 1, &held);
    presence.close(stage);
}

/// A session ignores a grant. Its other wait is passed over, until the client returns.
pub(super) fn a_grant_that_is_overdue(stage: &mut Stage<'_>) {
    let Some(mut presence) = Presence::open(stage, 2 * SHORT) else { return };
    for key in ["x", "y"] {
        stage.take(1, stage.acquire("a", &[key]));
    }
    for (n, key) in [(1, "x"), (2, "y")] {
        let number = presence.number(n);
        stage.take(1, Acquire { queue: Some(0), ..acquire(stage, "b", key, number) });
    }
    let next = [("x", 2), ("y", 3)].map(|(key, line)| {
        let wait = Acquire { block: Some(LONG), ..stage.acquire("c", &[key]) };
        (line, stage.begin(line, wait))
    });
    stage.release(1, "a", "x");
    for _ in 0..OVERDUE / SHORT + 4 {
        if stage.shared.is_over() {
            break;
        }
        stage.pause(SHORT);
    }
    stage.release(1, "a", "y");
    stage.pause(SHORT);
    presence.events(stage, SHORT / 2);
    presence.events(stage, 0);
    for (line, pending) in next {
        stage.end(line, pending);
    }
    stage.release(1, "c", "x");
    stage.release(1, "c", "y");
    presence.events(stage, SHORT / 2);
    presence.close(stage);
}
