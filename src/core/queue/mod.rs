// SPDX-License-Identifier: MIT

//! Waits, and the order in which they are served: first come, first served. Only this folder decides the
//! order.
//!
//! 1. An owner that holds the lock and wants more of it (an upgrade, a re-entry) comes before all newcomers.
//!    A request with [`Wants::once`](super::Wants::once) is always a newcomer.
//! 2. Within each of the two groups, waiters stand in order of arrival.
//! 3. A waiter is served when the holders admit it and no waiter ahead blocks it.
//! 4. Owners that hold the lock are blocked by holders only. A newcomer is blocked by every single-lock wait
//!    ahead.
//! 5. A member of a bundle may have to wait for another lock, so compatible waiters pass it. An exclusive or
//!    limited member blocks every newcomer behind it. A shared member without a limit blocks exclusive
//!    requests only.
//! 6. To resolve a deadlock, a waiter may overtake a member that arrived earlier
//!    ([`WaitQueue::overtake`](wait_queue::WaitQueue::overtake)). The member is then behind that waiter, as
//!    long as its owner waits in another call or for another lock of the bundle.
//!
//! Example: `h` holds the lock. Behind it wait the reader `r1`, a bundle with the exclusive member `m`, the
//! reader `r2` and the writer `w`. When `h` releases, `r1` is granted: it is first and admitted. `m` must
//! wait for `r1`, and blocks `r2` and `w`. When `r1` releases, the bundle is tried. If another of its locks
//! is held, `m` stays, and `r2` and `w` wait behind it. If `m` were shared, it would not block `r2`.
//!
//! * [`position`]: rules 1 and 2. [`wait_queue`]: the queue of one lock. [`overtaking`]: rule 6.
//! * [`wait`]: one wait and its state. [`waiters`]: all waits. [`owner_waits`]: the waits of one owner.
//! * [`bundles`]: calls for several locks, and the tries to grant them.
//! * [`fairness`]: windows in which a free lock is left to external clients before the queue is served.

pub(in crate::core) mod bundles;
pub(in crate::core) mod fairness;
mod overtaking;
mod owner_waits;
pub(in crate::core) mod position;
pub(in crate::core) mod wait;
pub(in crate::core) mod wait_queue;
pub(in crate::core) mod waiters;
