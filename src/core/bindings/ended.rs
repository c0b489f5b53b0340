// SPDX-License-Identifier: MIT

//! Requests whose hold has ended and that may still be repeated.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use crate::core::spare::free_spare;
use crate::core::{LockId, MonoUs, Owner, RequestId};

/// Interval between two sweeps, in microseconds.
const SWEEP_US: MonoUs = 1_000_000;

/// Maximum number of entries that one sweep forgets.
const FORGET_BATCH: usize = 2_000;

/// Requests whose holds have ended, each with the time until which it may be repeated, and owners whose holds
/// ended with a connection.
///
/// A repeated request must not bind its old connection to a later hold of the same owner. A request whose
/// hold ended with a connection counts as never made.
#[derive(Default)]
pub(super) struct EndedRequests {
    until: HashMap<(LockId, RequestId), MonoUs>,
    closed: HashMap<(LockId, Owner), Closed>,
    /// All entries, ordered by the time at which they are forgotten. If a request was repeated since, its
    /// entry here is stale: the request is gone or has a later time.
    forgotten_at: BTreeMap<MonoUs, Vec<EndedEntry>>,
}

/// A record that an owner's holds on a lock ended with a connection.
struct Closed {
    /// Time until which the requests that got these holds may be repeated.
    until: MonoUs,
    /// Requests that got a later hold of the owner.
    since: HashSet<RequestId>,
}

enum EndedEntry {
    Request((LockId, RequestId)),
    Owner((LockId, Owner)),
}

impl EndedRequests {
    pub(super) fn insert(&mut self, lock: LockId, id: RequestId, until: MonoUs) {
        let request = (lock, id);
        self.until.insert(request.clone(), until);
        self.forgotten_at.entry(rounded(until)).or_default().push(EndedEntry::Request(request));
    }

    pub(super) fn contains(&self, request: &(LockId, RequestId), now: MonoUs) -> bool {
        self.until.get(request).is_some_and(|until| *until >= now)
    }

    /// Records that all holds of the owner ended with a connection.
    pub(super) fn close(&mut self, lock: LockId, owner: Owner, until: MonoUs) {
        let hold = (lock, owner);
        self.closed.insert(hold.clone(), Closed { until, since: HashSet::default() });
        self.forgotten_at.entry(rounded(until)).or_default().push(EndedEntry::Owner(hold));
    }

    /// Whether this request got one of the owner's ended holds, or an even earlier one.
    pub(super) fn was_closed(&self, lock: LockId, owner: &Owner, id: &RequestId, now: MonoUs) -> bool {
        let closed = self.closed.get(&(lock, owner.clone()));
        closed.is_some_and(|closed| closed.until >= now && !closed.since.contains(id))
    }

    /// Records that a request got a hold.
    pub(super) fn note_granted(&mut self, lock: LockId, owner: &Owner, id: &RequestId) {
        self.until.remove(&(lock.clone(), id.clone()));
        if let Some(closed) = self.closed.get_mut(&(lock, owner.clone())) {
            closed.since.insert(id.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.forgotten_at.is_empty()
    }

    /// Number of entries, including stale ones that are not swept yet.
    pub(super) fn len(&self) -> usize {
        self.forgotten_at.values().map(Vec::len).sum()
    }

    /// Time of the next [`sweep`](EndedRequests::sweep).
    pub(super) fn due(&self) -> Option<MonoUs> {
        self.forgotten_at.first_key_value().map(|(at, _)| *at)
    }

    /// Forgets requests that can no longer be repeated, at most [`FORGET_BATCH`] per call.
    pub(super) fn sweep(&mut self, now: MonoUs) {
        let Some(mut bucket) = self.forgotten_at.first_entry().filter(|bucket| *bucket.key() <= now) else {
            return;
        };
        let all = bucket.get_mut();
        for past in all.drain(all.len().saturating_sub(FORGET_BATCH)..) {
            match past {
                EndedEntry::Request(request)
                    if self.until.get(&request).is_some_and(|until| *until < now) =>
                {
                    self.until.remove(&request);
                }
                EndedEntry::Owner(hold)
                    if self.closed.get(&hold).is_some_and(|closed| closed.until < now) =>
                {
                    self.closed.remove(&hold);
                }
                EndedEntry::Request(_) | EndedEntry::Owner(_) => {}
            }
        }
        if all.is_empty() {
            bucket.remove();
        }
        free_spare(&mut self.until);
        free_spare(&mut self.closed);
    }
}

/// The end of the sweep interval that contains `until`. Rounding lets one sweep forget many entries.
pub(super) fn rounded(until: MonoUs) -> MonoUs {
    (until / SWEEP_US + 1).saturating_mul(SWEEP_US)
}

#[cfg(test)]
mod tests {
    use super::{EndedRequests, LockId, RequestId, SWEEP_US};

    fn request(number: u32) -> (LockId, RequestId) {
        (LockId { db: 0, key: b"k".as_slice().into() }, RequestId::new(b"a", &number.to_be_bytes(), 1))
    }

    /// A long-lived entry does not keep other entries alive.
    #[test]
    fn a_long_lived_entry_keeps_no_other() {
        let mut ended = EndedRequests::default();
        let (lock, id) = request(0);
        ended.insert(lock, id, u64::MAX);
        for number in 1..10_000 {
            let (lock, id) = request(number);
            ended.insert(lock, id, 50);
        }
        let mut sweeps = 0;
        while ended.due() == Some(SWEEP_US) {
            ended.sweep(SWEEP_US);
            sweeps += 1;
        }
        assert_eq!((ended.len(), sweeps), (1, 5));
        assert!(ended.contains(&request(0), SWEEP_US) && !ended.contains(&request(1), SWEEP_US));
    }

    /// No entry is forgotten too early, and each is forgotten soon after its time.
    #[test]
    fn entries_are_forgotten_soon_after_their_time() {
        let ttl = 20 * SWEEP_US;
        let mut ended = EndedRequests::default();
        let end = 100_000;
        for number in 0..end {
            let now = u64::from(number) * 1_000;
            ended.sweep(now);
            let (lock, id) = request(number);
            ended.insert(lock, id, now + ttl);
            let oldest = number.saturating_sub(20_000);
            assert!(ended.contains(&request(oldest), now) && !ended.contains(&request(number + 1), now));
            assert!(ended.len() < 23_000, "{} entries are remembered", ended.len());
        }
        let mut now = u64::from(end) * 1_000;
        assert!(!ended.contains(&request(end - 1), now + ttl));
        while let Some(due) = ended.due() {
            assert!(due >= now && due <= now + ttl + SWEEP_US);
            now = due;
            ended.sweep(now);
        }
        assert!(ended.is_empty() && ended.until.is_empty() && ended.until.capacity() < 2_000);
    }
}
