// SPDX-License-Identifier: MIT

//! Locks: writing them, reconciling them after a change, and searching for deadlocks.

pub(super) mod commit;
pub(super) mod deadlock;
pub(super) mod reconcile;
pub(super) mod remembered;
