// SPDX-License-Identifier: MIT

//! The waits of one owner. Most owners wait for one lock and some for a few. If many calls share a name, one
//! owner may have thousands of waits.

use std::collections::BTreeSet;

use smallvec::{smallvec, SmallVec};

use crate::core::table::LockIdx;
use crate::core::WaiterId;

/// More waits than this number are stored in a tree.
const FEW: usize = 32;

/// The waits of one owner, ordered by lock handle and then by arrival.
#[derive(Debug)]
pub(in crate::core) enum OwnerWaits {
    Few(SmallVec<[(LockIdx, WaiterId); 1]>),
    Many(BTreeSet<(LockIdx, WaiterId)>),
}

impl OwnerWaits {
    pub(in crate::core) fn one(lock: LockIdx, id: WaiterId) -> OwnerWaits {
        OwnerWaits::Few(smallvec![(lock, id)])
    }

    pub(in crate::core) fn insert(&mut self, lock: LockIdx, id: WaiterId) {
        match self {
            OwnerWaits::Few(few) if few.len() == FEW => {
                let mut many: BTreeSet<_> = few.drain(..).collect();
                many.insert((lock, id));
                *self = OwnerWaits::Many(many);
            }
            OwnerWaits::Few(few) => {
                let at = few.binary_search(&(lock, id)).unwrap_or_else(|at| at);
                few.insert(at, (lock, id));
            }
            OwnerWaits::Many(many) => {
                many.insert((lock, id));
            }
        }
    }

    #[inline(always)]
    pub(in crate::core) fn remove(&mut self, lock: LockIdx, id: WaiterId) {
        match self {
            OwnerWaits::Few(few) => {
                if let Ok(at) = few.binary_search(&(lock, id)) {
                    few.remove(at);
                }
            }
            OwnerWaits::Many(many) => {
                many.remove(&(lock, id));
            }
        }
    }

    pub(in crate::core) fn is_empty(&self) -> bool {
        match self {
            OwnerWaits::Few(few) => few.is_empty(),
            OwnerWaits::Many(many) => many.is_empty(),
        }
    }

    /// Whether the waits are for more than one lock.
    #[inline(always)]
    pub(in crate::core) fn span_locks(&self) -> bool {
        let ends = match self {
            OwnerWaits::Few(few) => (few.first(), few.last()),
            OwnerWaits::Many(many) => (many.first(), many.last()),
        };
        matches!(ends, (Some((first, _)), Some((last, _))) if first != last)
    }

    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (LockIdx, WaiterId)> + '_ {
        let (few, many) = match self {
            OwnerWaits::Few(few) => (Some(few.iter()), None),
            OwnerWaits::Many(many) => (None, Some(many.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten()).copied()
    }

    /// The waits for this lock.
    pub(in crate::core) fn at(&self, lock: LockIdx) -> impl Iterator<Item = WaiterId> + '_ {
        let (few, many) = match self {
            OwnerWaits::Few(few) => {
                let from = few.partition_point(|(of, _)| *of < lock);
                let to = few.partition_point(|(of, _)| *of <= lock);
                (Some(few[from..to].iter()), None)
            }
            OwnerWaits::Many(many) => {
                (None, Some(many.range((lock, WaiterId(0))..=(lock, WaiterId(u64::MAX)))))
            }
        };
        few.into_iter().flatten().chain(many.into_iter().flatten()).map(|(_, id)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_answer_alike() {
        let of = |n: u32| (LockIdx::nth(n % 3), WaiterId(u64::from(n)));
        let (lock, id) = of(0);
        let mut waits = OwnerWaits::one(lock, id);
        assert!(!waits.span_locks());
        let mut expected = BTreeSet::from([(lock, id)]);
        for n in (1..100).rev() {
            let (lock, id) = of(n);
            waits.insert(lock, id);
            expected.insert((lock, id));
            let spans = expected.first().map(|(of, _)| of) != expected.last().map(|(of, _)| of);
            assert!(waits.span_locks() == spans && waits.iter().eq(expected.iter().copied()), "{n}");
        }
        for n in 0..100 {
            let (lock, id) = of(n);
            let at_lock = expected.iter().filter(|(of, _)| *of == lock).map(|(_, id)| *id);
            assert!(waits.at(lock).eq(at_lock), "{n}");
            waits.remove(lock, id);
            expected.remove(&(lock, id));
            assert!(waits.iter().eq(expected.iter().copied()), "{n}");
        }
        assert!(waits.is_empty() && !waits.span_locks());
    }
}
