// SPDX-License-Identifier: MIT

//! The waits-for graph, and the search for deadlocks in it.
//!
//! An owner that waits for a lock waits for every other owner whose hold excludes it. It also waits for every
//! other owner ahead in the queue, if one of the two requests excludes the other. Holders are in the
//! keyspace, so a search requests them lock by lock ([`Progress::Read`]).
//!
//! An owner with several threads may wait because of its own hold ([`Wants::once`](super::Wants::once)).
//! Another thread may release that hold, so such a wait is not in any cycle. A waiter behind one thread of an
//! owner does not wait for other threads that request the same lock with `once`.
//!
//! A request with a limit ([`Wants::limit`](super::Wants::limit)) waits until some of the holders release, no
//! matter which ones. So a cycle through one of them proves nothing yet: see [`cycles::CycleSearch`].
//!
//! * [`view`]: the queries about waits from which the graph is built.
//! * [`blockers`]: the edges of the graph at one wait.
//! * [`search`]: the search along these edges, from one owner.
//! * [`cycles`]: whether a wait in a cycle through a request with a limit ever ends.
//! * [`searches`]: the waits that must still be searched.

mod blockers;
mod cycles;
mod search;
pub(in crate::core) mod searches;
pub(in crate::core) mod view;

pub(crate) use search::{Edge, Progress, Search, PORTION};
pub(crate) use view::WaitView;
