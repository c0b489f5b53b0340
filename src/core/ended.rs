// SPDX-License-Identifier: MIT

//! Requests whose hold has ended and that may come again.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use super::spare::free_spare;
use super::{LockId, MonoUs, Owner, RequestId};

/// How often what cannot come again is forgotten, in microseconds.
const SWEEP_US: MonoUs = 1_000_000;

/// How many are forgotten at a time.
const FORGET_BATCH: usize = 2_000;

/// Requests whose hold has ended, and until when they may come again: what they bound before is not to be bound
/// to a later hold of the same owner. And owners whose holds have ended with a connection: it is as if the requests that got those
/// had never been made.
#[derive(Default)]
pub(super) struct Ended {
    until: HashMap<(LockId, RequestId), MonoUs>,
    closed: HashMap<(LockId, Owner), Closed>,
    /// All of them by the time at which they are forgotten. One that has come again meanwhile is not there any more, or
    /// has a later time there.
    forgotten_at: BTreeMap<MonoUs, Vec<Past>>,
}

/// The holds of an owner have ended with a connection.
struct Closed {
    /// Until when requests may come again that have got one of them.
    until: MonoUs,
    /// Requests that have got a later one.
    since: HashSet<RequestId>,
}

enum Past {
    Request((LockId, RequestId)),
    Owner((LockId, Owner)),
}

impl Ended {
    pub(super) fn insert(&mut self, lock: LockId, id: RequestId, until: MonoUs) {
        let request = (lock, id);
        self.until.insert(request.clone(), until);
        self.forgotten_at.entry(rounded(until)).or_default().push(Past::Request(request));
    }

    pub(super) fn contains(&self, request: &(LockId, RequestId), now: MonoUs) -> bool {
        self.until.get(request).is_some_and(|until| *until >= now)
    }

    /// All that the owner held has ended with a connection.
    pub(super) fn close(&mut self, lock: LockId, owner: Owner, until: MonoUs) {
        let hold = (lock, owner);
        self.closed.insert(hold.clone(), Closed { until, since: HashSet::default() });
        self.forgotten_at.entry(rounded(until)).or_default().push(Past::Owner(hold));
    }

    /// True if this request got one of these holds, or an earlier one.
    pub(super) fn was_closed(&self, lock: LockId, owner: &Owner, id: &RequestId, now: MonoUs) -> bool {
        let closed = self.closed.get(&(lock, owner.clone()));
        closed.is_some_and(|closed| closed.until >= now && !closed.since.contains(id))
    }

    /// A request has got a hold.
    pub(super) fn has_begun(&mut self, lock: LockId, owner: &Owner, id: &RequestId) {
        self.until.remove(&(lock.clone(), id.clone()));
        if let Some(closed) = self.closed.get_mut(&(lock, owner.clone())) {
            closed.since.insert(id.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.forgotten_at.is_empty()
    }

    /// How many there are, with those that have come again and are still to be forgotten.
    pub(super) fn len(&self) -> usize {
        self.forgotten_at.values().map(Vec::len).sum()
    }

    /// When [`sweep`](Ended::sweep) will forget some.
    pub(super) fn due(&self) -> Option<MonoUs> {
        self.forgotten_at.first_key_value().map(|(at, _)| *at)
    }

    /// Forgets what cannot come again; of very many, some, and the others the next time.
    pub(super) fn sweep(&mut self, now: MonoUs) {
        let Some(mut bucket) = self.forgotten_at.first_entry().filter(|bucket| *bucket.key() <= now) else {
            return;
        };
        let all = bucket.get_mut();
        for past in all.drain(all.len().saturating_sub(FORGET_BATCH)..) {
            match past {
                Past::Request(request) if self.until.get(&request).is_some_and(|until| *until < now) => {
                    self.until.remove(&request);
                }
                Past::Owner(hold) if self.closed.get(&hold).is_some_and(|closed| closed.until < now) => {
                    self.closed.remove(&hold);
                }
                Past::Request(_) | Past::Owner(_) => {}
            }
        }
        if all.is_empty() {
            bucket.remove();
        }
        free_spare(&mut self.until);
        free_spare(&mut self.closed);
    }
}

/// A time after this one at which many things are forgotten at once.
pub(super) fn rounded(until: MonoUs) -> MonoUs {
    (until / SWEEP_US + 1).saturating_mul(SWEEP_US)
}

#[cfg(test)]
mod tests {
    use super::{Ended, LockId, RequestId, SWEEP_US};

    fn request(number: u32) -> (LockId, RequestId) {
        (LockId { db: 0, key: b"k".as_slice().into() }, RequestId::new(b"a", &number.to_be_bytes(), 1))
    }

    /// One that is remembered for long keeps no other.
    #[test]
    fn a_long_one_keeps_no_other() {
        let mut ended = Ended::default();
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

    /// None is forgotten too early, and all are soon after their time.
    #[test]
    fn each_is_known_until_its_time_and_forgotten_soon_after() {
        let ttl = 20 * SWEEP_US;
        let mut ended = Ended::default();
        let end = 100_000;
        for number in 0..end {
            let now = u64::from(number) * 1_000;
            ended.sweep(now);
            let (lock, id) = request(number);
            ended.insert(lock, id, now + ttl);
            let oldest = number.saturating_sub(20_000);
            assert!(ended.contains(&request(oldest), now) && !ended.contains(&request(number + 1), now));
            assert!(ended.len() < 23_000, "{} are remembered", ended.len());
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
