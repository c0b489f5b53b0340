// SPDX-License-Identifier: MIT

//! One numbered acquire, from its first call to the end of its hold.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::Notify;

use crate::clock::{left, now, Moment};
use crate::core::Core;
use crate::error::{Error, ErrorKind};
use crate::io::Node;
use crate::request::{milliseconds, Request};

/// The user's side of an acquire.
#[derive(Default)]
pub(crate) struct Claim {
    pub(crate) request: Arc<Request>,
    pub(crate) owner: Vec<u8>,
    pub(crate) is_try: bool,
    /// The session and the number of the hold that this acquire takes over.
    pub(crate) source: Option<(String, u64)>,
    /// The limit of the wait.
    pub(crate) until: Moment,
    /// The present number. A new session, or another node, gets another one.
    pub(crate) n: AtomicU64,
    pub(crate) changed: Notify,
    pub(crate) tokens: OnceLock<Vec<u64>>,
    /// Why the acquire is over.
    pub(crate) reason: OnceLock<String>,
}

impl Claim {
    pub(crate) fn n(&self) -> u64 {
        self.n.load(Ordering::Relaxed)
    }

    /// Whether the acquire waits for an unreachable server for the patience only: it has no limit of its own.
    pub(crate) fn is_impatient(&self) -> bool {
        self.is_try || self.until == Moment::MAX
    }

    /// Whether the owners are the same, and a lock of both.
    pub(crate) fn collides(&self, other: &Claim) -> bool {
        self.owner == other.owner && self.request.keys.iter().any(|key| other.request.keys.contains(key))
    }

    pub(crate) fn lost(&self) -> Error {
        let reason = self.reason.get().map_or("expired", String::as_str);
        let text = format!("the hold ended before its release ({reason}); acquire the lock again");
        self.request.error(ErrorKind::Lost, &text)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Granted. Perhaps its release is on its way.
    Held,
    /// Its call is on its way, or it waits in the queue.
    Asked,
    /// Over for its user, but perhaps not on the server.
    Undo,
}

/// An acquire that is not over on the server.
pub(crate) struct Acquire {
    pub(crate) claim: Arc<Claim>,
    pub(crate) node: Arc<Node>,
    pub(crate) place: Place,
    /// Whether the present session may know its number, as it was sent or declared.
    pub(crate) is_known: bool,
    /// The last confirmation of the hold by an earlier session.
    pub(crate) confirmed: Moment,
    /// Whether an acquire or a release has no reply, so it may have succeeded.
    pub(crate) in_doubt: bool,
    pub(crate) is_releasing: bool,
    /// Whether the user has the hold.
    pub(crate) is_delivered: bool,
    /// The number of holds of its owner.
    pub(crate) holds: u64,
    pub(crate) sent: Option<Moment>,
    pub(crate) granted: Moment,
    /// The earliest end of the lease.
    pub(crate) lease_ends: Moment,
    /// The server may revoke the grant (R1), unless a `LOCK.EVENTS` that was sent after this time has confirmed.
    pub(crate) revocable_since: Option<Moment>,
}

impl Acquire {
    pub(crate) fn new(claim: Arc<Claim>, node: Arc<Node>) -> Acquire {
        Acquire {
            claim,
            node,
            place: Place::Asked,
            is_known: false,
            confirmed: Moment::ZERO,
            in_doubt: false,
            is_releasing: false,
            is_delivered: false,
            holds: 0,
            sent: None,
            granted: now(),
            lease_ends: Moment::MAX,
            revocable_since: None,
        }
    }

    pub(crate) fn is_at(&self, node: &Arc<Node>) -> bool {
        Arc::ptr_eq(&self.node, node)
    }

    /// The owner and the locks whose holds the server counts together.
    pub(crate) fn counted(&self) -> (Vec<u8>, Vec<Vec<u8>>) {
        (self.claim.owner.clone(), self.claim.request.keys.clone())
    }

    /// Whether it is a hold that lives as long as the session.
    pub(crate) fn is_renewed(&self) -> bool {
        self.place == Place::Held && self.claim.request.lease.is_none()
    }

    /// A call of `ACQUIRE`, `RENEW`, `RELEASE` or `CANCEL`.
    pub(crate) fn call(&self, verb: &str, id: &str, lease: Option<Duration>) -> Cmd {
        let claim = &self.claim;
        let age = if self.place == Place::Held { now().saturating_sub(self.granted) } else { Duration::ZERO };
        let max_hold = claim.request.max_hold.map(|max| max.saturating_sub(age));
        let mut call = claim.request.call(verb, &claim.owner, lease, max_hold);
        call.arg("SESSION").arg(id).arg(claim.n());
        match &claim.source {
            Some((name, m)) if verb == "RENEW" && self.place == Place::Asked => {
                call.arg("FROM").arg(name).arg(m);
            }
            None if verb == "ACQUIRE" && !claim.is_try => {
                let is_limited = claim.until < Moment::MAX;
                call.arg("QUEUE").arg(if is_limited { milliseconds(left(claim.until)) } else { 0 });
            }
            _ => {}
        }
        call
    }

    /// The call that binds a hold, or what may be one, to another session, with the rest of its lease.
    pub(crate) fn declaration(&self, id: &str) -> Cmd {
        // An acquire without a grant has its whole lease.
        let rest = |lease| if self.lease_ends == Moment::MAX { lease } else { left(self.lease_ends) };
        self.call("RENEW", id, self.claim.request.lease.map(rest))
    }
}

/// Ends an acquire when its future or its hold is dropped.
pub(crate) struct Guard {
    pub(crate) core: Arc<Core>,
    pub(crate) claim: Arc<Claim>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.claim.reason.get().is_none() && !self.core.is_forked() {
            self.core.abandon(&self.claim);
        }
    }
}
