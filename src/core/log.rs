// SPDX-License-Identifier: MIT

//! A log of the last incidents: long waits, lost holds, deadlocks, revoked grants and ended sessions. Its memory is
//! bounded.

use std::collections::VecDeque;

use super::statistics::MAX_REMEMBERED_KEY_LEN;
use super::{LockId, MonoUs, Owner, WallMs};

/// A longer cycle is logged without its text, to limit memory.
const MAX_CYCLE: usize = 16;

/// Maximum length of the text of a cause, in bytes. A longer one is omitted.
const MAX_TEXT_LEN: usize = 4096;

/// The kind of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    /// A wait has ended that took longer than the limit.
    Wait,
    /// A hold has ended without a call of its owner.
    Lost,
    /// A wait could never end.
    Deadlock,
    /// A grant did not reach its client.
    Revoked,
    /// A session's client was silent, or its connection was closed.
    Session,
}

impl Incident {
    /// The name in `LOCK.LOG`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Incident::Wait => "wait",
            Incident::Lost => "lost",
            Incident::Deadlock => "deadlock",
            Incident::Revoked => "revoked",
            Incident::Session => "session",
        }
    }
}

/// The cause of an incident.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cause {
    #[default]
    Unknown,
    /// The owner that held the lock.
    Holder(Owner),
    /// A user with an address, or a cycle of owners that wait for each other. Clients may see it if they may read these locks.
    Text(String, Vec<LockId>),
}

/// An incident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    /// Grows by one with each entry.
    pub(crate) id: u64,
    pub(crate) at: WallMs,
    pub(crate) incident: Incident,
    /// `None` for a session.
    pub(crate) lock: Option<LockId>,
    /// The waiter or the former holder, or the name of the session.
    pub(crate) owner: Owner,
    pub(crate) cause: Cause,
    /// Duration of the wait.
    pub(crate) waited_us: Option<MonoUs>,
    /// How the wait or the hold ended.
    pub(crate) reason: &'static str,
}

/// The last incidents, the oldest first.
#[derive(Default)]
pub(crate) struct Log {
    entries: VecDeque<LogEntry>,
    last_id: u64,
    max_len: usize,
    /// Waits of at least this time are logged. 0 if none are.
    waits_over_us: MonoUs,
}

impl Log {
    /// Sets the number of entries to keep, and the duration from which waits are logged; 0 for none.
    pub(super) fn set_limits(&mut self, max_len: usize, waits_over_us: MonoUs) {
        (self.max_len, self.waits_over_us) = (max_len, if max_len == 0 { 0 } else { waits_over_us });
        let excess = self.entries.len().saturating_sub(max_len);
        self.entries.drain(..excess);
        self.entries.shrink_to(max_len);
    }

    /// Whether a wait of this duration is logged.
    #[inline(always)]
    pub(super) fn logs_wait(&self, waited_us: MonoUs) -> bool {
        // The subtraction turns 0 into a limit that no wait reaches.
        waited_us > self.waits_over_us.wrapping_sub(1)
    }

    /// Adds an incident, and drops the oldest one if there are too many. Ignores incidents of locks and owners with long
    /// names.
    #[cold]
    pub(super) fn push(&mut self, mut entry: LogEntry) {
        let key_len = entry.lock.as_ref().map_or(0, |lock| lock.key.len());
        if self.max_len == 0 || key_len.max(entry.owner.as_bytes().len()) > MAX_REMEMBERED_KEY_LEN {
            return;
        }
        if entry.cause.is_long() {
            entry.cause = Cause::Unknown;
        }
        if self.entries.len() == self.max_len {
            self.entries.pop_front();
        }
        self.last_id += 1;
        self.entries.push_back(LogEntry { id: self.last_id, ..entry });
    }

    /// The incidents, the latest first.
    pub(crate) fn latest(&self) -> impl Iterator<Item = &LogEntry> {
        self.entries.iter().rev()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Cause {
    fn is_long(&self) -> bool {
        match self {
            Cause::Unknown => false,
            Cause::Holder(owner) => owner.as_bytes().len() > MAX_REMEMBERED_KEY_LEN,
            Cause::Text(text, _) => text.len() > MAX_TEXT_LEN,
        }
    }

    /// A cycle of owners that wait for each other, and its locks.
    pub(crate) fn of_cycle(text: String, locks: Vec<LockId>) -> Cause {
        let is_short =
            locks.len() <= MAX_CYCLE && locks.iter().all(|lock| lock.key.len() <= MAX_REMEMBERED_KEY_LEN);
        if is_short {
            Cause::Text(text, locks)
        } else {
            Cause::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cause, Incident, Log, LogEntry, MAX_REMEMBERED_KEY_LEN, MAX_TEXT_LEN};
    use crate::core::{LockId, Owner};

    fn entry(key_len: usize) -> LogEntry {
        LogEntry {
            id: 0,
            at: 0,
            incident: Incident::Lost,
            lock: Some(LockId { db: 0, key: vec![b'k'; key_len].as_slice().into() }),
            owner: Owner::new(b"alice"),
            cause: Cause::Unknown,
            waited_us: None,
            reason: "expired",
        }
    }

    #[test]
    fn the_latest_incidents_remain() {
        let mut log = Log::default();
        log.push(entry(1));
        assert_eq!(log.len(), 0, "the log is off");
        log.set_limits(3, 0);
        for _ in 0..5 {
            log.push(entry(1));
        }
        assert_eq!(log.latest().map(|entry| entry.id).collect::<Vec<_>>(), [5, 4, 3]);
        log.push(entry(MAX_REMEMBERED_KEY_LEN + 1));
        assert_eq!(log.len(), 3, "the key is too long");
        let long = Owner::new(&[b'o'; MAX_REMEMBERED_KEY_LEN + 1]);
        log.push(LogEntry { owner: long.clone(), ..entry(1) });
        assert_eq!(log.len(), 3, "the owner is too long");
        for cause in [Cause::Holder(long), Cause::Text("t".repeat(MAX_TEXT_LEN + 1), Vec::new())] {
            log.push(LogEntry { cause, ..entry(1) });
            assert_eq!(log.latest().next().map(|entry| entry.cause.clone()), Some(Cause::Unknown));
        }
        assert_eq!(log.latest().map(|entry| entry.id).collect::<Vec<_>>(), [7, 6, 5]);
        log.set_limits(2, 0);
        assert_eq!(log.latest().map(|entry| entry.id).collect::<Vec<_>>(), [7, 6]);
        log.set_limits(0, 0);
        assert_eq!(log.len(), 0);
    }

    #[test]
    fn only_long_waits_are_logged() {
        let mut log = Log::default();
        assert!(!log.logs_wait(u64::MAX), "the log is off");
        log.set_limits(1, 1_000);
        assert_eq!([999, 1_000, u64::MAX].map(|us| log.logs_wait(us)), [false, true, true]);
        log.set_limits(1, 0);
        assert!(!log.logs_wait(u64::MAX));
        log.set_limits(0, 1_000);
        assert!(!log.logs_wait(u64::MAX));
    }

    #[test]
    fn a_long_cycle_has_no_text() {
        let lock = |key: &[u8]| LockId { db: 0, key: key.into() };
        assert!(matches!(Cause::of_cycle("a".into(), vec![lock(b"k"); 16]), Cause::Text(..)));
        assert_eq!(Cause::of_cycle("a".into(), vec![lock(b"k"); 17]), Cause::Unknown);
        assert_eq!(
            Cause::of_cycle("a".into(), vec![lock(&[b'k'; MAX_REMEMBERED_KEY_LEN + 1])]),
            Cause::Unknown
        );
    }
}
