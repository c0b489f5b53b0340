// SPDX-License-Identifier: MIT

//! Scenes: short scripts for a few clients on locks that no other client uses. Their calls come in an order that random calls
//! rarely produce. The calls are recorded and checked like all others; a scene itself asserts nothing.
//!
//! Holds of a scene outlast the server's permitted delay, so the checker notices a waiter that is wrongly not served.

use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::RngExt;
use serde_json::Value;

use super::link::{Line, Pending};
use super::session_scenes::{a_grant_that_is_overdue, a_late_release_of_a_number, a_session_that_is_resumed};
use super::Shared;
use crate::record::{Acquire, Claim, Command, Disturbance, Fault, Outcome, Record, Release};
use crate::wire::{End, Wire};

/// Lease of a hold that outlasts its scene, in milliseconds.
pub(super) const LONG: i64 = 8_000;
/// Longest wait in milliseconds; shorter than the lease [`LONG`].
const WAIT_LIMIT: i64 = 5_000;
/// Lease of a hold that ends within its scene, in milliseconds.
pub(super) const SHORT: i64 = 40;
/// Number of connections of a scene, besides the observer's.
const CONNECTIONS: usize = 4;
/// Number of checks whether an owner waits.
const CHECKS: usize = 100;
/// Number of checks whether an owner has stopped waiting; lasts longer than the server's permitted delay.
const LONG_CHECKS: usize = 2_000;

type Scene = fn(&mut Stage<'_>);

const SCENES: [Scene; 29] = [
    a_writer_gives_up_before_readers,
    permits_end_one_by_one,
    expired_permits,
    expired_permits_after_checks,
    an_upgrade_before_the_queue,
    an_upgrade_of_one_of_two,
    two_upgrades,
    a_deadlock_of_two,
    a_deadlock_of_three,
    a_watchdog_of_a_closed_connection,
    a_watchdog_at_its_limit,
    an_ephemeral_hold_of_a_closed_connection,
    a_wait_for_several_locks_ends,
    several_locks_freed_in_turn,
    a_blocking_owner_overtakes,
    several_locks_cancelled_in_part,
    a_cancel_before_its_call,
    a_cancel_after_the_release,
    a_token_of_an_upgrade,
    a_guard_after_its_lease,
    a_wait_of_a_closed_connection,
    a_retry_in_the_queue,
    a_retry_after_the_release,
    a_reader_behind_a_writer,
    a_re_entry_without_a_lease,
    a_lease_that_ends_in_a_pause,
    a_late_release_of_a_number,
    a_session_that_is_resumed,
    a_grant_that_is_overdue,
];

/// Plays one scene after another until the load is over.
pub(super) fn run(shared: &Shared, client: u32) {
    let lines = (0..CONNECTIONS).map(|_| Line::new(shared, client)).collect();
    let (observer, rng) = (Line::new(shared, client), shared.rng(client));
    let mut stage = Stage { shared, client, lines, observer, rng, number: 0 };
    for scene in SCENES.into_iter().cycle() {
        if shared.is_late() || shared.is_over() {
            break;
        }
        scene(&mut stage);
        stage.clear();
    }
}

/// The connections and names of a scene.
pub(super) struct Stage<'a> {
    pub(super) shared: &'a Shared,
    client: u32,
    pub(super) lines: Vec<Line<'a>>,
    observer: Line<'a>,
    rng: StdRng,
    /// Number of the scene.
    number: u32,
}

impl Stage<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}scene-{}-{}-{name}", self.shared.settings.prefix, self.client, self.number)
    }

    fn owner(&self, name: &str) -> String {
        format!("s{}n{}{name}", self.client, self.number)
    }

    /// A long hold of a lock.
    pub(super) fn acquire(&self, owner: &str, keys: &[&str]) -> Acquire {
        Acquire {
            keys: keys.iter().map(|key| self.key(key)).collect(),
            several: keys.len() > 1,
            owner: self.owner(owner),
            lease: Some(LONG),
            ..Acquire::default()
        }
    }

    /// A waiting acquire of a long hold.
    fn wait(&self, owner: &str, keys: &[&str]) -> Acquire {
        Acquire { block: Some(WAIT_LIMIT), ..self.acquire(owner, keys) }
    }

    pub(super) fn call(&mut self, line: usize, command: Command) -> Outcome {
        self.lines[line].call(command, None)
    }

    pub(super) fn take(&mut self, line: usize, acquire: Acquire) -> Outcome {
        self.call(line, Command::Acquire(acquire))
    }

    pub(super) fn release(&mut self, line: usize, owner: &str, key: &str) -> Outcome {
        let (keys, owner) = (vec![self.key(key)], self.owner(owner));
        self.call(line, Command::Release(Release { keys, owner, ..Release::default() }))
    }

    fn cancel(&mut self, line: usize, of: &Acquire, key: &str) -> Outcome {
        let (key, owner) = (self.key(key), of.owner.clone());
        let id = of.id.clone().unwrap_or_default();
        self.call(line, Command::Cancel { key, owner, id, session: None })
    }

    pub(super) fn check(&mut self, line: usize, owner: &str, key: &str) -> Outcome {
        let (key, claim) = (self.key(key), Claim::Owner(self.owner(owner)));
        self.call(line, Command::Check { key, claim })
    }

    /// Sends a call that waits, and returns once the call is queued or has a reply.
    pub(super) fn begin(&mut self, line: usize, acquire: Acquire) -> Option<Pending> {
        let (key, owner) = (acquire.keys[0].clone(), acquire.owner.clone());
        let pending = self.lines[line].send(Command::Acquire(acquire));
        self.until(&key, &owner, true);
        pending
    }

    /// Reads the queue until this owner is in it, or no longer is.
    fn until(&mut self, key: &str, owner: &str, is_there: bool) {
        for _ in 0..if is_there { CHECKS } else { LONG_CHECKS } {
            let look = self.observer.call(Command::Waiters { key: key.to_owned() }, None);
            let Outcome::Reply(Value::Array(queue)) = look else { return };
            let is_owner =
                |entry: &Value| entry.as_array().is_some_and(|entry| entry.iter().any(|word| word == owner));
            if queue.iter().any(is_owner) == is_there {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn end(&mut self, line: usize, pending: Option<Pending>) {
        if let Some(pending) = pending {
            self.lines[line].receive(pending);
        }
    }

    pub(super) fn pause(&mut self, ms: i64) {
        thread::sleep(Duration::from_millis(ms.unsigned_abs()));
    }

    /// Ends all remaining holds and waits of the scene, and switches to other locks.
    fn clear(&mut self) {
        for name in ["x", "y", "z"] {
            let key = self.key(name);
            self.observer.call(Command::Waiters { key: key.clone() }, None);
            self.observer.call(Command::Break { key }, None);
        }
        self.number += 1;
    }
}

/// Readers wait behind a writer that waits for a reader. The writer times out, and the readers are granted.
fn a_writer_gives_up_before_readers(stage: &mut Stage<'_>) {
    stage.take(0, Acquire { shared: true, ..stage.acquire("a", &["x"]) });
    let writer = stage.begin(1, Acquire { block: Some(SHORT), ..stage.wait("b", &["x"]) });
    let reader = stage.begin(2, Acquire { shared: true, ..stage.wait("c", &["x"]) });
    stage.end(1, writer);
    stage.end(2, reader);
}

/// Two permits are held, and only the first one ends.
fn permits_end_one_by_one(stage: &mut Stage<'_>) {
    let of_two = Acquire { shared: true, limit: Some(2), ..stage.acquire("", &["x"]) };
    stage.take(0, Acquire { owner: stage.owner("a"), lease: Some(2 * SHORT), ..of_two.clone() });
    stage.take(0, Acquire { owner: stage.owner("b"), ..of_two.clone() });
    let third = stage.begin(1, Acquire { owner: stage.owner("c"), block: Some(WAIT_LIMIT), ..of_two });
    stage.end(1, third);
}

/// Many permits are held, some expire, and the free ones are granted.
fn expired_permits(stage: &mut Stage<'_>) {
    let of_many = Acquire { shared: true, limit: Some(12), ..stage.acquire("", &["x"]) };
    for number in 0..10 {
        stage.take(0, Acquire { owner: stage.owner(&format!("a{number}")), ..of_many.clone() });
    }
    for number in 0..8 {
        let owner = stage.owner(&format!("b{number}"));
        stage.take(0, Acquire { owner, lease: Some(2), ..of_many.clone() });
        stage.pause(3);
    }
    for number in 0..4 {
        stage.pause(1);
        stage.take(1, Acquire { owner: stage.owner(&format!("c{number}")), ..of_many.clone() });
    }
}

/// Many permits are held and some expire. Checks by the holders come before the next acquire.
fn expired_permits_after_checks(stage: &mut Stage<'_>) {
    let of_many = Acquire { shared: true, limit: Some(12), ..stage.acquire("", &["x"]) };
    for number in 0..12 {
        let lease = Some(if number < 10 { LONG } else { SHORT / 8 });
        stage.take(0, Acquire { owner: stage.owner(&format!("a{number}")), lease, ..of_many.clone() });
    }
    stage.pause(SHORT / 4);
    for _ in 0..3 {
        stage.check(1, "a0", "x");
        stage.pause(2);
    }
    for number in 0..4 {
        stage.take(1, Acquire { owner: stage.owner(&format!("b{number}")), ..of_many.clone() });
    }
    for number in 0..10 {
        stage.check(0, &format!("a{number}"), "x");
    }
}

/// The only reader upgrades while a writer waits.
fn an_upgrade_before_the_queue(stage: &mut Stage<'_>) {
    stage.take(0, Acquire { shared: true, ..stage.acquire("a", &["x"]) });
    let writer = stage.begin(1, stage.wait("b", &["x"]));
    stage.take(0, stage.wait("a", &["x"]));
    stage.release(0, "a", "x");
    stage.release(0, "a", "x");
    stage.end(1, writer);
}

/// One of two readers upgrades once the other has released, while a writer waits for both.
fn an_upgrade_of_one_of_two(stage: &mut Stage<'_>) {
    stage.take(0, Acquire { shared: true, ..stage.acquire("a", &["x"]) });
    stage.take(2, Acquire { shared: true, ..stage.acquire("b", &["x"]) });
    let writer = stage.begin(1, stage.wait("c", &["x"]));
    let upgrade = stage.begin(0, stage.wait("a", &["x"]));
    stage.release(2, "b", "x");
    stage.end(0, upgrade);
    stage.release(0, "a", "x");
    stage.release(0, "a", "x");
    stage.end(1, writer);
}

/// Two readers upgrade.
fn two_upgrades(stage: &mut Stage<'_>) {
    stage.take(0, Acquire { shared: true, ..stage.acquire("a", &["x"]) });
    stage.take(1, Acquire { shared: true, ..stage.acquire("b", &["x"]) });
    let one = stage.begin(0, stage.wait("a", &["x"]));
    stage.take(1, stage.wait("b", &["x"]));
    stage.release(1, "b", "x");
    stage.end(0, one);
}

/// Two owners wait for each other. The owner that gets the error continues without the lock.
fn a_deadlock_of_two(stage: &mut Stage<'_>) {
    stage.take(0, stage.acquire("a", &["x"]));
    stage.take(1, stage.acquire("b", &["y"]));
    let one = stage.begin(0, stage.wait("a", &["y"]));
    stage.take(1, stage.wait("b", &["x"]));
    stage.until(&stage.key("x"), &stage.owner("b"), false);
    stage.release(2, "a", "x");
    stage.take(3, stage.wait("c", &["x"]));
    stage.release(1, "b", "y");
    stage.end(0, one);
}

/// Three owners wait for each other, one of them in a queue of readers.
fn a_deadlock_of_three(stage: &mut Stage<'_>) {
    for (line, (owner, key)) in [("a", "x"), ("b", "y"), ("c", "z")].into_iter().enumerate() {
        stage.take(line, stage.acquire(owner, &[key]));
    }
    let one = stage.begin(0, stage.wait("a", &["y"]));
    let other = stage.begin(1, Acquire { shared: true, ..stage.wait("b", &["z"]) });
    stage.take(2, stage.wait("c", &["x"]));
    stage.release(2, "c", "z");
    stage.end(1, other);
    stage.release(1, "b", "y");
    stage.end(0, one);
}

/// The lease that a watchdog renews ends after its connection has closed.
fn a_watchdog_of_a_closed_connection(stage: &mut Stage<'_>) {
    let limit = Some(LONG);
    stage.take(
        0,
        Acquire { watchdog: true, watchdog_max: limit, lease: Some(2 * SHORT), ..stage.acquire("a", &["x"]) },
    );
    stage.lines[0].hang_up(End::Close);
    stage.take(1, stage.wait("b", &["x"]));
}

/// The connection stays open, and the watchdog ends at its limit.
fn a_watchdog_at_its_limit(stage: &mut Stage<'_>) {
    let limit = Some(3 * SHORT);
    stage.take(
        0,
        Acquire { watchdog: true, watchdog_max: limit, lease: Some(2 * SHORT), ..stage.acquire("a", &["x"]) },
    );
    stage.take(1, stage.wait("b", &["x"]));
}

/// A hold ends with its connection before its lease.
fn an_ephemeral_hold_of_a_closed_connection(stage: &mut Stage<'_>) {
    stage.take(0, Acquire { ephemeral: true, ..stage.acquire("a", &["x"]) });
    let next = stage.begin(1, stage.wait("b", &["x"]));
    let end = if stage.rng.random() { End::Close } else { End::Reset };
    stage.lines[0].hang_up(end);
    stage.end(1, next);
}

/// A call for two locks ends, and the waiter behind it at the free lock is granted.
fn a_wait_for_several_locks_ends(stage: &mut Stage<'_>) {
    stage.take(0, stage.acquire("a", &["x"]));
    let both = Acquire { id: Some("1".to_owned()), ..stage.wait("b", &["x", "y"]) };
    let is_cancelled = stage.rng.random();
    let block = Some(if is_cancelled { WAIT_LIMIT } else { SHORT });
    let several = stage.begin(1, Acquire { block, ..both.clone() });
    let behind = stage.begin(2, stage.wait("c", &["y"]));
    if is_cancelled {
        stage.cancel(3, &both, "x");
    }
    stage.end(1, several);
    stage.end(2, behind);
}

/// A call waits for two locks. The first becomes free, and then the second in one of several ways.
fn several_locks_freed_in_turn(stage: &mut Stage<'_>) {
    let way = stage.rng.random_range(0..4);
    stage.take(0, stage.acquire("a", &["x"]));
    let lease = Some(if way == 0 { 2 * SHORT } else { LONG });
    stage.take(3, Acquire { lease, ephemeral: way == 1, ..stage.acquire("b", &["y"]) });
    let both = stage.begin(1, stage.wait("c", &["x", "y"]));
    stage.release(0, "a", "x");
    match way {
        0 => {}
        1 => stage.lines[3].hang_up(End::Close),
        2 => drop(stage.call(0, Command::Break { key: stage.key("y") })),
        _ => drop(stage.release(3, "b", "y")),
    }
    stage.end(1, both);
}

/// A call waits for two locks, and the holder of the first acquires the free second.
fn a_blocking_owner_overtakes(stage: &mut Stage<'_>) {
    stage.take(0, stage.acquire("a", &["x"]));
    let both = stage.begin(1, stage.wait("b", &["x", "y"]));
    stage.take(0, stage.wait("a", &["y"]));
    stage.release(0, "a", "y");
    stage.release(0, "a", "x");
    stage.end(1, both);
}

/// A waiting call is granted two locks, one of which is cancelled at once.
fn several_locks_cancelled_in_part(stage: &mut Stage<'_>) {
    stage.take(0, stage.acquire("a", &["x"]));
    let both = Acquire { id: Some("1".to_owned()), ..stage.wait("b", &["x", "y"]) };
    let pending = stage.begin(1, both.clone());
    let (key, owner) = (stage.key("x"), stage.owner("a"));
    let release = Release { keys: vec![key.clone()], owner, ..Release::default() };
    let cancel = Command::Cancel { key, owner: both.owner, id: "1".to_owned(), session: None };
    // Both calls reach the server together.
    let calls = [Command::Release(release), cancel].map(|command| stage.lines[0].send(command));
    for call in calls {
        stage.end(0, call);
    }
    stage.end(1, pending);
    stage.check(1, "b", "y");
    stage.take(3, stage.acquire("c", &["y"]));
}

/// A cancel overtakes its call.
fn a_cancel_before_its_call(stage: &mut Stage<'_>) {
    let late = Acquire { id: Some("1".to_owned()), ..stage.acquire("a", &["x"]) };
    stage.cancel(0, &late, "x");
    stage.take(1, late);
}

/// A cancel arrives after its hold has ended, when the owner has another hold.
fn a_cancel_after_the_release(stage: &mut Stage<'_>) {
    let first = Acquire { id: Some("1".to_owned()), ..stage.acquire("a", &["x"]) };
    // The server tracks the ends of bound holds only.
    let watchdog = stage.rng.random();
    stage.take(0, Acquire { watchdog, ephemeral: !watchdog, ..first.clone() });
    stage.release(0, "a", "x");
    stage.take(0, Acquire { id: Some("2".to_owned()), ..stage.acquire("a", &["x"]) });
    stage.cancel(1, &first, "x");
    stage.check(0, "a", "x");
    stage.take(2, stage.acquire("b", &["x"]));
}

/// A reader upgrades after other owners have got tokens.
fn a_token_of_an_upgrade(stage: &mut Stage<'_>) {
    let reads = Acquire { shared: true, fence: true, ..stage.acquire("a", &["x"]) };
    stage.take(0, reads.clone());
    stage.take(1, Acquire { owner: stage.owner("b"), ..reads });
    stage.release(1, "b", "x");
    stage.take(0, Acquire { fence: true, ..stage.acquire("a", &["x"]) });
}

/// A reader's lease expires while another reader holds the lock.
fn a_guard_after_its_lease(stage: &mut Stage<'_>) {
    stage.take(0, Acquire { shared: true, ..stage.acquire("a", &["x"]) });
    stage.take(1, Acquire { shared: true, lease: Some(SHORT / 8), ..stage.acquire("b", &["x"]) });
    stage.pause(SHORT);
    for owner in ["b", "a"] {
        let (key, claim) = (stage.key("x"), Claim::Owner(stage.owner(owner)));
        let entry = format!("{} {}:{}", stage.owner(owner), stage.client, stage.number);
        stage.call(1, Command::Guard { key, claim, entry });
        stage.check(1, owner, "x");
    }
}

/// A connection closes while a call waits on it, and then the lock becomes free.
fn a_wait_of_a_closed_connection(stage: &mut Stage<'_>) {
    stage.take(0, stage.acquire("a", &["x"]));
    let gone = stage.begin(1, stage.wait("b", &["x"]));
    let next = stage.begin(2, stage.wait("c", &["x"]));
    let end = if stage.rng.random() { End::Close } else { End::Reset };
    if let Some(gone) = gone {
        stage.lines[1].abandon(gone, end);
    }
    stage.until(&stage.key("x"), &stage.owner("b"), false);
    stage.release(0, "a", "x");
    stage.end(2, next);
}

/// A waiting call is repeated on another connection while the server still has the first one. Another waiter is behind it.
fn a_retry_in_the_queue(stage: &mut Stage<'_>) {
    stage.take(0, stage.acquire("a", &["x"]));
    let first = Acquire { id: Some("1".to_owned()), ..stage.wait("b", &["x"]) };
    let once = stage.begin(1, first.clone());
    let behind = stage.begin(2, stage.wait("c", &["x"]));
    let again = stage.lines[3].send(Command::Acquire(first));
    // The first call's reply shows the effect of the retry.
    stage.end(1, once);
    stage.until(&stage.key("x"), &stage.owner("b"), true);
    stage.release(0, "a", "x");
    stage.pause(1);
    stage.until(&stage.key("x"), &stage.owner("c"), true);
    stage.end(3, again);
    stage.release(3, "b", "x");
    stage.end(2, behind);
}

/// A call that was granted and released is repeated while other owners hold the lock and wait for it.
fn a_retry_after_the_release(stage: &mut Stage<'_>) {
    let first = Acquire { id: Some("1".to_owned()), ..stage.wait("a", &["x"]) };
    stage.take(0, first.clone());
    stage.release(0, "a", "x");
    stage.take(1, stage.acquire("b", &["x"]));
    let behind = stage.begin(2, stage.wait("c", &["x"]));
    let again = stage.lines[3].send(Command::Acquire(first));
    stage.pause(1);
    stage.release(1, "b", "x");
    stage.end(2, behind);
    stage.release(2, "c", "x");
    stage.end(3, again);
    stage.check(3, "a", "x");
    stage.take(0, stage.acquire("d", &["x"]));
}

/// A writer waits for a reader, and another reader arrives.
fn a_reader_behind_a_writer(stage: &mut Stage<'_>) {
    stage.take(0, Acquire { shared: true, ..stage.acquire("a", &["x"]) });
    let writer = stage.begin(1, stage.wait("b", &["x"]));
    let reader = stage.begin(2, Acquire { shared: true, ..stage.wait("c", &["x"]) });
    stage.pause(1);
    stage.until(&stage.key("x"), &stage.owner("b"), true);
    stage.release(0, "a", "x");
    stage.end(1, writer);
    stage.release(1, "b", "x");
    stage.end(2, reader);
}

/// An owner re-enters without a lease. The default lease is shorter than the remaining one.
fn a_re_entry_without_a_lease(stage: &mut Stage<'_>) {
    stage.take(0, stage.acquire("a", &["x"]));
    stage.take(0, Acquire { lease: None, ..stage.acquire("a", &["x"]) });
    stage.pause(stage.shared.settings.run().default_lease + SHORT);
    stage.check(0, "a", "x");
    stage.take(1, stage.acquire("b", &["x"]));
}

/// The lease of a lock with a waiter ends while the server refuses writes.
fn a_lease_that_ends_in_a_pause(stage: &mut Stage<'_>) {
    if !stage.shared.settings.faults.pause {
        return;
    }
    let Ok(mut wire) = Wire::connect(stage.shared.server()) else { return };
    stage.take(0, Acquire { lease: Some(SHORT), ..stage.acquire("a", &["x"]) });
    let next = stage.begin(1, stage.wait("b", &["x"]));
    let shared = stage.shared;
    let recorder = &shared.recorder;
    // Other threads must not start or end a pause meanwhile.
    let alone = shared.exclude_other_faults();
    let from = recorder.now();
    let is_paused = wire.ask("CLIENT PAUSE 60000 WRITE").is_some();
    let certain_from = recorder.now();
    // The reply is read as soon as it arrives.
    let mut line = std::mem::replace(&mut stage.lines[1], Line::new(shared, stage.client));
    let (certain_until, is_over, until) = thread::scope(|scope| {
        scope.spawn(|| next.map(|next| line.receive(next)));
        for _ in 0..2 {
            stage.until(&stage.key("x"), &stage.owner("b"), true);
            stage.pause(SHORT);
        }
        (recorder.now(), wire.ask("CLIENT UNPAUSE").is_some(), recorder.now())
    });
    stage.lines[1] = line;
    recorder.add(Record::Fault(Fault { what: Disturbance::Pause, from, until }));
    drop(alone);
    if is_paused && is_over {
        let (from, until) = (certain_from, certain_until);
        recorder.add(Record::Fault(Fault { what: Disturbance::Paused, from, until }));
    }
}
