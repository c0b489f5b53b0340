// SPDX-License-Identifier: MIT

//! Waits of one queue that have overtaken bundle members.

use foldhash::{HashMap, HashSet};

use crate::core::WaiterId;

/// Pairs of a wait and a member that it overtakes. Boxed, because every lock has a queue but few queues have
/// pairs.
#[derive(Default)]
pub(super) struct Overtaking(pub(super) Option<Box<Pairs>>);

/// The pairs, indexed by either side.
#[derive(Default)]
pub(super) struct Pairs {
    pub(super) by_overtaker: HashMap<WaiterId, HashSet<WaiterId>>,
    pub(super) by_member: HashMap<WaiterId, HashSet<WaiterId>>,
}

impl Overtaking {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The members that this wait overtakes, if it overtakes any.
    pub(super) fn of_overtaker(&self, overtaker: WaiterId) -> Option<&HashSet<WaiterId>> {
        self.0.as_ref()?.by_overtaker.get(&overtaker)
    }

    /// The waits that overtake this member, if any do.
    pub(super) fn of_member(&self, member: WaiterId) -> Option<&HashSet<WaiterId>> {
        self.0.as_ref()?.by_member.get(&member)
    }

    pub(super) fn insert(&mut self, overtaker: WaiterId, member: WaiterId) -> bool {
        let pairs = self.0.get_or_insert_default();
        pairs.by_member.entry(member).or_default().insert(overtaker);
        pairs.by_overtaker.entry(overtaker).or_default().insert(member)
    }

    /// Removes a pair. Returns whether it existed.
    pub(super) fn remove(&mut self, overtaker: WaiterId, member: WaiterId) -> bool {
        let Some(pairs) = &mut self.0 else { return false };
        remove_from(&mut pairs.by_member, member, overtaker);
        let removed = remove_from(&mut pairs.by_overtaker, overtaker, member);
        self.free_if_empty();
        removed
    }

    /// Removes all pairs of a wait that leaves.
    pub(super) fn forget(&mut self, id: WaiterId) {
        let Some(pairs) = &mut self.0 else { return };
        for member in pairs.by_overtaker.remove(&id).into_iter().flatten() {
            remove_from(&mut pairs.by_member, member, id);
        }
        for overtaker in pairs.by_member.remove(&id).into_iter().flatten() {
            remove_from(&mut pairs.by_overtaker, overtaker, id);
        }
        self.free_if_empty();
    }

    pub(super) fn free_if_empty(&mut self) {
        if self.0.as_ref().is_some_and(|pairs| pairs.by_overtaker.is_empty()) {
            self.0 = None;
        }
    }
}

/// Removes a value from a key, and the key once it has no values.
fn remove_from(map: &mut HashMap<WaiterId, HashSet<WaiterId>>, key: WaiterId, value: WaiterId) -> bool {
    let Some(values) = map.get_mut(&key) else { return false };
    let removed = values.remove(&value);
    if values.is_empty() {
        map.remove(&key);
    }
    removed
}
