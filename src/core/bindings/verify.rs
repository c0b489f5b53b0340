// SPDX-License-Identifier: MIT

//! Consistency checks of the bindings.

use std::collections::BTreeSet;

use super::Bindings;
use crate::core::sessions::SessionKey;
use crate::core::table::LockIdx;
use crate::core::{Mode, Owner};

impl Bindings {
    /// Fails if an index disagrees with the bindings. `knows` returns whether a lock is in the table.
    pub(in crate::core) fn verify(&self, knows: impl Fn(LockIdx) -> bool) {
        let (mut links, mut renewals, mut sweeps) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut ephemeral, mut ended_owners) = (0, 0);
        for (lock, bound) in self.by_lock.iter() {
            assert!(
                knows(lock) && !bound.bindings.is_empty(),
                "{lock:?} has bindings and is not in the table"
            );
            let closed = bound.bindings.iter().filter(|(_, binding)| binding.is_closed());
            assert!(
                closed.map(|(owner, _)| owner).eq(bound.closed.keys()),
                "the index of closed holds is wrong"
            );
            ended_owners += bound.ended.len();
            for (owner, binding) in bound.bindings.iter() {
                let hold = (lock, owner.clone());
                links.extend(binding.each_connection().map(|connection| (connection, hold.clone())));
                renewals.extend(binding.due().map(|at| (at, hold.clone())));
                sweeps.extend(binding.sweep_at().map(|at| (at, hold.clone())));
                ephemeral += usize::from(binding.is_ephemeral());
                let has_ended = binding.numbers().iter().any(|number| number.ended);
                assert!(!has_ended || bound.ended.get(owner).is_some(), "{hold:?} is never released");
                assert!(!binding.is_unverified() || bound.unverified, "{hold:?} is never verified again");
            }
        }
        let linked = self.by_connection.iter().map(|(connection, hold)| (connection, hold.clone()));
        let linked: BTreeSet<_> = linked.collect();
        assert_eq!(linked, links, "the index by connection is wrong");
        assert!(self.renewals.iter().eq(&renewals), "the schedule of renewals is wrong");
        assert!(self.sweeps.iter().eq(&sweeps), "the schedule of sweeps is wrong");
        assert_eq!(self.ephemeral, ephemeral, "the holds that end with a connection are miscounted");
        assert_eq!(self.ended_owners, ended_owners, "the holds that end with a session are miscounted");
    }

    /// The holds with numbers of sessions, except those of sessions that are over.
    pub(in crate::core) fn all_numbers(
        &self,
    ) -> impl Iterator<Item = (LockIdx, Owner, SessionKey, u64, Mode)> + '_ {
        let bindings = self.by_lock.iter().flat_map(|(lock, bound)| {
            bound.bindings.iter().map(move |(owner, binding)| (lock, owner, binding))
        });
        bindings.flat_map(|(lock, owner, binding)| {
            let numbers = binding.numbers().iter().filter(|number| !number.ended);
            numbers.map(move |number| (lock, owner.clone(), number.session, number.n, number.mode))
        })
    }
}
