//! Turns of strangers: clients that wait for the same lock elsewhere, as Redisson's do.
//!
//! Such a client hears a message when the lock becomes free, and then needs a round trip to take it. Whoever waits
//! here needs none: as long as somebody does, or comes back fast enough, the lock is never free when a stranger asks.
//! So after a run of grants here, and only if somebody elsewhere listens, the lock is left free for a moment with a
//! message, and those who are ready to wait let strangers go first. Whoever does not wait takes what is free, as ever.
//!
//! Who listens is asked once in a run. A listener who does not come for the lock, as it is frozen, far away or no
//! client at all, soon gets its turns at long intervals only.

use super::entries::Entry;
use super::{Holders, LockRef, MonoUs, Now, Records, Service, WallMs};

/// How many grants here are in a row before strangers get a turn. At least a tenth of the grants shall be theirs, also
/// if they miss some turns.
const RUN: u32 = 4;

/// For how many grants here one elsewhere makes up, and how many are remembered: who missed some turns gets the next ones
/// sooner, though never two in a row.
const MAKES_UP: u32 = 6;
const LONGEST_RUN: u32 = 60;

/// The same before any stranger has taken the lock: most who listen never have to be let in.
const FIRST_RUN: u32 = 16;

/// How long a turn lasts, in microseconds: enough for a message, a thread that wakes up and a command, and with the
/// timer's millisecond below the 5 ms in which a free lock is to be granted.
const TURN_US: MonoUs = 3_000;

/// How long a turn can become where strangers need more, in microseconds.
const LONGEST_TURN_US: MonoUs = 32_000;

/// How many missed turns in a row cost a stranger nothing: any program stumbles now and then.
const FREE_MISSES: u32 = 8;

/// After more misses the next turn comes when this many times the missed one has passed; it doubles with each miss,
/// [`DOUBLINGS`] times at most.
const PENALTY: MonoUs = 10;
const DOUBLINGS: u32 = 3;

/// For how long it is remembered that somebody elsewhere listened, while nobody here has to do with the lock, in
/// microseconds.
const MEMORY_US: MonoUs = 1_000_000;

/// The turns of strangers at one lock.
#[derive(Default)]
pub(super) struct Turn {
    /// How many grants here there were that none elsewhere made up for. Counted only while the lock has an entry.
    run: u32,
    /// Nobody here was granted the lock since a stranger had it.
    just_taken: bool,
    /// Somebody elsewhere listened when it was last asked.
    heard: bool,
    /// Somebody elsewhere has taken the lock.
    met: bool,
    /// Since when the lock is free for everybody, and they know.
    open_since: Option<MonoUs>,
    /// The turn that is on: since when, and until when.
    on: Option<(MonoUs, MonoUs)>,
    /// How long the next one lasts, if not [`TURN_US`].
    length: Option<MonoUs>,
    /// How many in a row were missed.
    misses: u32,
    not_before: MonoUs,
    /// When the lock was last granted, taken, or told to be free.
    last_seen: MonoUs,
    /// The entry of this lock in `Service::turns`: when the turn is over, or forgotten that somebody listened.
    planned: Option<MonoUs>,
}

impl Turn {
    pub(super) fn is_idle(&self) -> bool {
        self.is_blank() && self.planned.is_none()
    }

    /// Somebody elsewhere listens: the end of the lease is watched for them.
    pub(super) fn is_heard(&self) -> bool {
        self.heard
    }

    fn is_blank(&self) -> bool {
        self.run == 0 && !self.heard && !self.met
    }

    fn is_due(&self, now: Now) -> bool {
        !self.just_taken
            && self.run >= (if self.met { RUN } else { FIRST_RUN })
            && self.not_before <= now.mono
    }

    fn next_length(&self) -> MonoUs {
        self.length.unwrap_or(TURN_US)
    }

    /// When a turn that begins now is over.
    fn end(&self, now: Now) -> MonoUs {
        now.mono.saturating_add(self.next_length())
    }

    fn begin(&mut self, now: Now) -> MonoUs {
        let until = self.end(now);
        self.on = Some((now.mono, until));
        self.heard = true;
        until
    }

    fn missed(&mut self, now: Now) {
        let Some((since, until)) = self.on.take() else { return };
        let length = until.saturating_sub(since);
        self.misses = self.misses.saturating_add(1);
        if self.misses > FREE_MISSES {
            let doubled = PENALTY << (self.misses - FREE_MISSES - 1).min(DOUBLINGS);
            self.not_before = now.mono.saturating_add(length.saturating_mul(doubled));
        }
        self.length = Some(length.saturating_mul(2).min(LONGEST_TURN_US));
    }

    fn taken(&mut self, now: Now) {
        if let Some((since, _)) = self.on.take() {
            let took = now.mono.saturating_sub(since);
            self.length = Some(took.saturating_mul(2).clamp(TURN_US, LONGEST_TURN_US));
            self.misses = 0;
            self.not_before = now.mono;
        }
        self.run = self.run.saturating_sub(MAKES_UP);
        self.just_taken = true;
        self.last_seen = now.mono;
        self.open_since = None;
        self.met = true;
    }

    /// Somebody here got the lock.
    pub(super) fn granted(&mut self, now: Now) {
        let open_since = self.open_since.take();
        // Strangers could have come, and no turn had to be made for that.
        if open_since.is_some_and(|since| now.mono.saturating_sub(since) >= self.next_length()) {
            self.run = 0;
        }
        self.run = self.run.saturating_add(1).min(LONGEST_RUN);
        self.just_taken = false;
        self.last_seen = now.mono;
        // Somebody took it who did not want to wait: that is a turn that strangers missed.
        self.missed(now);
    }
}

impl Service {
    /// Whether a lock that is free is left to strangers for now.
    pub(super) fn is_strangers_turn(
        &mut self,
        lock: LockRef<'_>,
        records: &mut dyn Records,
        now: Now,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(lock) else { return false };
        let turn = &mut entry.turn;
        if let Some((_, until)) = turn.on {
            if now.mono < until {
                return true;
            }
            turn.missed(now);
            self.plan_turn(lock, None);
            return false;
        }
        // One that was free before is not made free once more.
        let becomes_free =
            || !entry.waiting.is_empty() || self.held.contains(lock) || self.owed.contains(&lock.to_id());
        // Nor is anybody's time to wait spent on it.
        let first = entry.waiting.values().next().and_then(|id| self.waiters.get(id));
        let in_time =
            |end: MonoUs| first.and_then(|waiter| waiter.deadline).is_none_or(|deadline| deadline > end);
        if !turn.is_due(now) || !in_time(turn.end(now)) || !becomes_free() {
            return false;
        }
        if !records.has_listeners() {
            *turn = Turn { planned: turn.planned, ..Turn::default() };
            return false;
        }
        records.announce();
        self.turns_given += 1;
        let until = turn.begin(now);
        self.owed.remove(&lock.to_id());
        self.plan_turn(lock, Some(until));
        true
    }

    /// True if whoever is ready to wait that long lets strangers go first. Nobody's time to wait is over by that.
    pub(super) fn yields(&self, lock: LockRef<'_>, ready_until: MonoUs, now: Now) -> bool {
        let on = self.entries.get(lock).and_then(|entry| entry.turn.on);
        on.is_some_and(|(_, until)| now.mono < until && until < ready_until)
    }

    /// Somebody who never asked here has taken the lock.
    pub(super) fn stranger_took(&mut self, lock: LockRef<'_>, now: Now) {
        let Some(entry) = self.entries.get_mut(lock) else { return };
        if entry.turn.on.is_some() {
            self.turns_taken += 1;
        }
        entry.turn.taken(now);
        self.plan_turn(lock, None);
    }

    /// It was published that the lock is free; `heard` if anybody listened.
    pub(crate) fn told(&mut self, lock: LockRef<'_>, heard: bool, now: Now) {
        if !heard && !self.knows(lock) {
            return;
        }
        let turn = &mut self.entries.get_or_make(lock).1.turn;
        turn.heard = heard;
        turn.last_seen = now.mono;
        turn.open_since = turn.on.is_none().then_some(now.mono);
        self.settle_turn(lock, &Holders::Free, now);
        self.entries.drop_if_idle(lock);
    }

    /// True if those who wait elsewhere are still to be told that the lock is free. It is forgotten then.
    pub(crate) fn take_owed(&mut self, lock: LockRef<'_>) -> bool {
        if self.owed.is_empty() {
            return false;
        }
        let id = lock.to_id();
        let owed = self.owed.remove(&id);
        if owed {
            // It was marked so that it is looked at, which is being done.
            self.dirty.remove(&id);
        }
        owed
    }

    /// How many turns strangers were given, and how many of them they took.
    pub(crate) fn strangers_turns(&self) -> (usize, usize) {
        (self.turns_given, self.turns_taken)
    }

    /// The lock is free earlier than strangers know who wait for it: they are told when the first lease ends.
    pub(crate) fn lease_shortened(&mut self, lock: LockRef<'_>, first_end: WallMs) {
        self.entries.get_or_make(lock).1.turn.heard = true;
        self.set_lease_end(lock, Some(first_end));
    }

    /// Forgets what is not needed any more, now or after a while.
    pub(super) fn settle_turn(&mut self, lock: LockRef<'_>, holders: &Holders, now: Now) {
        let Some(Entry { turn, waiting, .. }) = self.entries.get_mut(lock) else { return };
        match turn.on {
            Some(_) if !holders.is_free() => {
                self.stranger_took(lock, now);
                self.settle_turn(lock, holders, now);
            }
            Some((_, until)) => self.plan_turn(lock, Some(until)),
            None if !waiting.is_empty() || turn.is_blank() => {}
            None if turn.heard => {
                let plan = turn.planned.unwrap_or(now.mono.saturating_add(MEMORY_US));
                self.plan_turn(lock, Some(plan));
            }
            None if holders.is_free() => self.forget_turn(lock),
            // Until something happens to the key.
            None => {}
        }
    }

    /// Ends turns that are over, and forgets what is old.
    pub(super) fn end_turns(&mut self, now: Now) {
        while let Some((at, lock)) = self.turns.first().cloned() {
            if at > now.mono {
                break;
            }
            self.plan_turn(lock.as_ref(), None);
            let granted_here = self.held.contains(lock.as_ref());
            let Some(Entry { turn, waiting, lease_end, .. }) = self.entries.get_mut(lock.as_ref()) else {
                continue;
            };
            let forget_at = turn.last_seen.saturating_add(MEMORY_US);
            if turn.on.is_some() && !waiting.is_empty() {
                self.dirty.insert(lock);
            } else if turn.on.is_some() {
                turn.missed(now);
                self.plan_turn(lock.as_ref(), Some(now.mono.saturating_add(MEMORY_US)));
            } else if !waiting.is_empty() || (turn.heard && granted_here && lease_end.is_some()) {
                // Whoever waits here, or the end of the lease that strangers wait for, leads to another look.
            } else if forget_at > now.mono {
                self.plan_turn(lock.as_ref(), Some(forget_at));
            } else {
                *turn = Turn::default();
                self.set_lease_end(lock.as_ref(), None);
                self.entries.drop_if_idle(lock.as_ref());
            }
        }
    }

    /// Nobody here grants anything any more, or nothing is known about the lock any more.
    pub(super) fn forget_turn(&mut self, lock: LockRef<'_>) {
        self.plan_turn(lock, None);
        if let Some(entry) = self.entries.get_mut(lock) {
            entry.turn = Turn::default();
        }
    }

    fn plan_turn(&mut self, lock: LockRef<'_>, at: Option<MonoUs>) {
        if self.entries.get(lock).is_none_or(|entry| entry.turn.planned == at) {
            return;
        }
        let Some((id, entry)) = self.entries.get_with_id(lock) else { return };
        let before = std::mem::replace(&mut entry.turn.planned, at);
        if let Some(at) = before {
            self.turns.remove(&(at, id.clone()));
        }
        if let Some(at) = at {
            self.turns.insert((at, id));
        }
    }
}
