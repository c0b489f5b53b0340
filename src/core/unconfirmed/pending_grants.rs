// SPDX-License-Identifier: MIT

//! One owner's hold: a certain part, plus pending grants that may be revoked.

use crate::core::lease::SetLease;
use crate::core::{Token, WaiterId, WallMs};

/// The effect of a grant on the fencing token of its owner's hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct SetToken {
    /// The token in the client's reply, if it requested one.
    pub(in crate::core) token: Option<Token>,
    /// Whether the hold was only shared before. Then its earlier token does not count for an exclusive hold.
    pub(in crate::core) upgrade: bool,
}

/// The effect of a grant on its owner's hold, apart from the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) struct GrantEffect {
    pub(in crate::core) lease: SetLease,
    /// `None` if the token stays as it is.
    pub(in crate::core) token: Option<SetToken>,
}

/// The effect of one grant that may be revoked.
#[derive(Clone, Copy, Debug)]
struct PendingGrant {
    id: WaiterId,
    /// `None` if a later, irrevocable call has set the lease.
    lease: Option<SetLease>,
    /// `None` if the grant took no token, or a later, irrevocable call has set the token.
    token: Option<SetToken>,
}

/// The hold of one owner: its certain part, plus the grants that may be revoked, in order.
#[derive(Debug)]
pub(in crate::core) struct PendingGrants {
    /// End of the lease if all pending grants are revoked; `None` if no hold is left then.
    lease: Option<WallMs>,
    /// Fencing token if all pending grants are revoked.
    token: Option<Token>,
    grants: Vec<PendingGrant>,
    /// End of the lease as this server last wrote it. If the key has a different end, a foreign write has set
    /// it since.
    written: WallMs,
}

impl PendingGrants {
    /// A hold without pending grants. `lease` is `None` if the owner holds nothing.
    pub(in crate::core) fn new(lease: Option<WallMs>, token: Option<Token>) -> PendingGrants {
        PendingGrants { lease, token, grants: Vec::new(), written: lease.unwrap_or_default() }
    }

    /// Adds a grant that may be revoked. The lease ended at `before`, and ends at `written` for now.
    pub(in crate::core) fn granted(
        &mut self,
        id: WaiterId,
        effect: GrantEffect,
        before: Option<WallMs>,
        written: WallMs,
    ) {
        if self.lease_is_certain() {
            self.lease = before;
        }
        self.grants.push(PendingGrant { id, lease: Some(effect.lease), token: effect.token });
        self.written = written;
    }

    /// Records that an irrevocable call has set the lease, which ends at `written` for now.
    pub(in crate::core) fn note_lease(&mut self, lease: SetLease, written: WallMs) {
        if self.lease_is_certain() {
            self.lease = Some(written);
        } else {
            self.resolve_lease(self.grants.len(), lease);
        }
        self.written = written;
    }

    /// Records that an irrevocable call has taken a token, or an exclusive hold without one.
    pub(in crate::core) fn note_token(&mut self, token: Option<Token>) {
        self.resolve_token(self.grants.len(), token);
    }

    /// Records that a foreign write has set the lease. Earlier settings no longer matter.
    pub(in crate::core) fn lease_is_foreign(&mut self) {
        self.grants.iter_mut().for_each(|grant| grant.lease = None);
        self.lease = None;
    }

    /// Merges a grant that has reached its client into the certain part.
    pub(in crate::core) fn delivered(&mut self, id: WaiterId) {
        let Some(at) = self.position_of(id) else { return };
        let grant = self.grants[at];
        if let Some(lease) = grant.lease {
            self.resolve_lease(at, lease);
        }
        if let Some(SetToken { token, .. }) = grant.token {
            self.resolve_token(at, token);
        }
        self.grants.remove(at);
    }

    /// Removes a grant that has not reached its client. Returns the token of the remaining hold if it
    /// changes. `exclusive` is true if the owner still holds the lock exclusively.
    pub(in crate::core) fn revoked(&mut self, id: WaiterId, exclusive: bool) -> Option<Option<Token>> {
        let at = self.position_of(id)?;
        let effect = self.grants.remove(at).token?;
        let (before, after) = self.grants.split_at(at);
        if after.iter().any(|grant| grant.token.is_some()) {
            return None;
        }
        let before = before.iter().rev().find_map(|grant| grant.token);
        let token = before.map_or(self.token, |before| before.token);
        Some(token.filter(|_| !(effect.upgrade && exclusive)))
    }

    /// Returns the new end of the lease once the outcome of every relevant grant is known. `ends` is the end
    /// in the key. Returns `None` if an outcome is open, the end is already right, or a foreign write has set
    /// it.
    pub(in crate::core) fn resolved_lease(&mut self, ends: WallMs) -> Option<WallMs> {
        let is_certain = self.lease_is_certain();
        let end = self.lease.filter(|end| is_certain && self.written == ends && *end != ends)?;
        self.written = end;
        Some(end)
    }

    /// The end of the lease as this server last wrote it, and the end as far as it is certain.
    pub(in crate::core) fn ends(&self) -> (WallMs, WallMs) {
        let certain = self.lease.filter(|_| self.lease_is_certain());
        (self.written, certain.unwrap_or(self.written))
    }

    /// Whether no pending grant is left.
    pub(in crate::core) fn is_over(&self) -> bool {
        self.grants.is_empty()
    }

    pub(in crate::core) fn lease_is_certain(&self) -> bool {
        self.grants.iter().all(|grant| grant.lease.is_none())
    }

    pub(in crate::core) fn position_of(&self, id: WaiterId) -> Option<usize> {
        self.grants.iter().position(|grant| grant.id == id)
    }

    /// Makes the lease certain. Earlier settings matter only if this one preserves them.
    pub(in crate::core) fn resolve_lease(&mut self, before: usize, lease: SetLease) {
        self.lease = Some(lease.after(self.lease));
        for grant in &mut self.grants[..before] {
            match (lease, &mut grant.lease) {
                (SetLease::To(_), lease) => *lease = None,
                (SetLease::AtLeast(end), Some(lease)) => lease.at_least(end),
                (SetLease::AtLeast(_), None) => {}
            }
        }
    }

    pub(in crate::core) fn resolve_token(&mut self, before: usize, token: Option<Token>) {
        self.token = token;
        self.grants[..before].iter_mut().for_each(|grant| grant.token = None);
    }
}
