//! Requests whose hold has ended and that may come again.

use foldhash::HashMap;

use super::{LockId, MonoUs, RequestId};

/// How often what cannot come again is forgotten, in microseconds.
const SWEEP_US: MonoUs = 1_000_000;

/// Requests whose hold has ended, and until when they may come again: what they bound before is not to be bound
/// to a later hold of the same owner.
///
/// They are forgotten a table at a time: none before it cannot come again, all within twice that time, and their memory
/// with them.
#[derive(Default)]
pub(super) struct Ended {
    young: HashMap<(LockId, RequestId), MonoUs>,
    /// Until when the last of the young may come again.
    young_until: MonoUs,
    old: HashMap<(LockId, RequestId), MonoUs>,
    old_until: MonoUs,
}

impl Ended {
    pub(super) fn insert(&mut self, lock: LockId, id: RequestId, until: MonoUs) {
        self.young_until = self.young_until.max(until);
        self.young.insert((lock, id), until);
        if self.old.is_empty() {
            self.grow_old();
        }
    }

    pub(super) fn contains(&self, request: &(LockId, RequestId), now: MonoUs) -> bool {
        let until = |table: &HashMap<_, MonoUs>| table.get(request).copied();
        // Of two, the later one is the young one.
        until(&self.young).or_else(|| until(&self.old)).is_some_and(|until| until >= now)
    }

    pub(super) fn remove(&mut self, request: &(LockId, RequestId)) {
        self.young.remove(request);
        self.old.remove(request);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// When [`sweep`](Ended::sweep) will forget some.
    pub(super) fn due(&self) -> Option<MonoUs> {
        (!self.is_empty()).then(|| rounded(self.old_until))
    }

    pub(super) fn sweep(&mut self, now: MonoUs) {
        while self.due().is_some_and(|due| due <= now) {
            self.grow_old();
        }
    }

    fn grow_old(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.old_until = std::mem::take(&mut self.young_until);
    }
}

/// A time after this one at which many things are forgotten at once.
pub(super) fn rounded(until: MonoUs) -> MonoUs {
    (until / SWEEP_US + 1).saturating_mul(SWEEP_US)
}

#[cfg(test)]
mod tests {
    use super::{Ended, LockId, RequestId, SWEEP_US};
    use crate::core::Owner;

    fn request(number: u32) -> (LockId, RequestId) {
        let id = number.to_be_bytes().as_slice().into();
        (LockId { db: 0, key: b"k".as_slice().into() }, RequestId { asked: Owner::new(b"a"), id, ttl_ms: 1 })
    }

    /// None is forgotten too early, and all are in twice their time.
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
            assert!(ended.len() < 45_000, "{} are remembered", ended.len());
        }
        let mut now = u64::from(end) * 1_000;
        assert!(!ended.contains(&request(end - 1), now + ttl));
        while let Some(due) = ended.due() {
            assert!(due > now && due <= now + ttl + SWEEP_US);
            now = due;
            ended.sweep(now);
        }
        assert!(ended.is_empty() && ended.young.capacity() + ended.old.capacity() == 0);
    }
}
