// SPDX-License-Identifier: MIT

//! Grants the lock to a request.

use super::Step;
use crate::core::bindings::binding::{BindMode, NewBind};
use crate::core::held::HoldRecord;
use crate::core::holders::Admission;
use crate::core::queue::bundles::Verdict;
use crate::core::unconfirmed::pending_grants::{GrantEffect, SetToken};
use crate::core::unconfirmed::EarlierHold;
use crate::core::{Counted, Decision, Hold, Mode, MonoUs, Refusal, Reply, Request, WaiterId, WallMs, Wants};

/// A granted request.
pub(super) struct Grant {
    pub(super) reply: Reply,
    pub(super) effect: GrantEffect,
    /// The owner's hold before the grant, if it already held the lock.
    pub(super) before: Option<EarlierHold>,
    /// End of the lease as the grant has written it.
    pub(super) written: WallMs,
}

/// The time of a grant to a waiter, relative to its client's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantTime {
    /// The client's call is running.
    AtOnce,
    AfterWaiting,
}

/// The reason why a request was not granted.
pub(super) enum NotGranted {
    Busy,
    Refused(Refusal),
}

/// The receiver of the reply to a grant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyTarget {
    /// The caller: the grant cannot be revoked.
    Caller,
    /// A waiting client, which may be gone.
    Waiter,
}

impl Step<'_> {
    /// Whether a call that can wait until this time lets external clients go first.
    pub(in crate::core::manager) fn yields(&self, ready_until: MonoUs) -> bool {
        self.holders.is_free() && self.state().is_some_and(|state| state.yields(ready_until, self.now))
    }

    /// Decides whether known or forgotten holders exclude this request. Forgotten holders are compatible with
    /// the known ones, so they allow more holds of the same mode.
    #[inline(always)]
    pub(super) fn admits(&self, owner: &[u8], wants: Wants) -> Admission {
        let is_re_entry = |hold: &Hold| !wants.once && hold.allows_more(wants.mode);
        match self.parts.quarantined_until {
            Some(until) if self.now.mono < until && !self.holders.get(owner).is_some_and(is_re_entry) => {
                Admission::Busy
            }
            _ => self.holders.admits(owner, wants),
        }
    }

    /// Whether only a forgotten holder may exclude this request.
    pub(in crate::core::manager) fn is_quarantined(&self, request: &Request) -> bool {
        let owner = request.owner.as_bytes();
        self.holders.admits(owner, request.wants) != Admission::Busy
            && self.admits(owner, request.wants) == Admission::Busy
    }

    /// Whether the owner already holds the lock and may get more, so that no waiter blocks it.
    pub(in crate::core::manager) fn wants_more(&self, request: &Request) -> bool {
        !request.wants.once && self.holders.get(request.owner.as_bytes()).is_some()
    }

    /// Grants a request that is first, if the holders admit it.
    #[inline(always)]
    pub(super) fn grant(&mut self, request: &Request, to: ReplyTarget) -> Result<Grant, NotGranted> {
        let owner = request.owner.as_bytes();
        let holds = match self.admits(owner, request.wants) {
            Admission::Busy => return Err(NotGranted::Busy),
            Admission::Overflow => return Err(NotGranted::Refused(Refusal::Overflow)),
            Admission::Grant(holds) => holds,
        };
        let hold = self.holders.get(owner);
        let before = hold.map(|hold| EarlierHold { end: hold.expires_at, token: hold.token });
        let before_end = hold.map(|hold| hold.expires_at);
        // An upgrade to an exclusive hold needs a new token, because other readers may have newer tokens than
        // this owner.
        let re_entry = hold.filter(|hold| hold.allows_more(request.wants.mode));
        let upgrade = hold.is_some() && re_entry.is_none();
        let token = if request.fence {
            match re_entry.and_then(|hold| hold.token) {
                Some(token) => Some(token),
                None => {
                    self.parts.statistics.count(Counted::Token);
                    Some(self.records.next_token(self.holders.token()).map_err(NotGranted::Refused)?)
                }
            }
        } else {
            None
        };
        let token_is_set = request.fence || upgrade;
        let effect = GrantEffect {
            lease: self.keep_lease(&request.owner, request.set_lease(self.now)),
            token: token_is_set.then_some(SetToken { token, upgrade }),
        };
        let written = match to {
            ReplyTarget::Caller => effect.lease.after(before_end),
            ReplyTarget::Waiter => effect.lease.while_revocable(before_end),
        };
        self.holders.add(&request.owner, request.wants.mode, written, token);
        let since = before.is_none().then_some(self.now.mono);
        self.note_held(&request.owner, HoldRecord { end: written, since, client: request.client });
        // Recorded even for an owner from another server, because this server now knows that the key is a
        // lock.
        self.parts.granted_keys.insert(self.name);
        let now = self.now;
        if let Some(state) = self.state_mut() {
            state.note_grant(now);
            if request.wants.mode == Mode::Exclusive && before.is_none() {
                state.hold_begins(now.mono);
            }
        }
        let reply = request.reply(holds, token);
        if let Some(id) = &request.id {
            self.parts.bindings.note_granted(|| self.name.to_id(), &request.owner, id, self.now);
            self.records.remember_grant(id, &reply, self.now);
        }
        Ok(Grant { reply, effect, before, written })
    }

    /// Grants the caller's request. `None` if the holders exclude it.
    pub(in crate::core::manager) fn grant_caller(
        &mut self,
        request: &Request,
    ) -> Result<Option<Reply>, Refusal> {
        let Grant { reply, effect, before, written } = match self.grant(request, ReplyTarget::Caller) {
            Ok(grant) => grant,
            Err(NotGranted::Busy) => return Ok(None),
            Err(NotGranted::Refused(refusal)) => return Err(refusal),
        };
        self.count_grant(before.is_none());
        let lease = request.lease(written, self.now);
        if let Some(lock) = self.lock {
            if before.is_some() {
                self.parts.note_setting(lock, &request.owner, Some((effect.lease, written)), effect.token);
            }
            self.parts.bindings.note_lease(lock, &request.owner, lease, self.now);
            self.parts.move_waits_ahead(lock, &request.owner);
            if self.parts.has_members(lock) {
                self.parts.search_waits_of(&request.owner);
            }
            // The request may have been queued before with different arguments.
            self.supersede(lock, request);
        }
        if let Some(bind) = request.bind {
            let bind =
                NewBind { begins: before.is_none(), ..NewBind::new(bind, BindMode::Add, self.now.mono) };
            self.bind(&request.owner, bind, request.id.as_ref(), lease);
        }
        if let Some(call) = request.number() {
            let lock = self.known();
            let held_since = before.is_none().then_some(self.now.mono);
            self.parts.bind_number(lock, &request.owner, call, reply.clone(), held_since, lease);
        }
        Ok(Some(reply))
    }

    /// Counts a grant without a wait.
    pub(super) fn count_grant(&mut self, begins: bool) {
        let counted = if begins { Counted::GrantedAtOnce } else { Counted::Reentered };
        self.parts.statistics.count(counted);
    }

    /// Grants the caller's request. The grant is in flight at first, so it can be revoked. `None` if the holders
    /// exclude the request.
    pub(in crate::core::manager) fn grant_in_flight(
        &mut self,
        request: &Request,
    ) -> Result<Option<WaiterId>, Refusal> {
        let grant = match self.grant(request, ReplyTarget::Waiter) {
            Ok(grant) => grant,
            Err(NotGranted::Busy) => return Ok(None),
            Err(NotGranted::Refused(refusal)) => return Err(refusal),
        };
        let id = self.queue(request.clone(), None);
        let lock = self.known();
        self.count_grant(grant.before.is_none());
        let reply = self.hand_over(lock, id, request, grant, GrantTime::AtOnce);
        self.parts.decisions.push_back((id, Decision::Granted(reply)));
        Ok(Some(id))
    }

    /// Grants a member that is next in its queue. See [`Step::may_grant`].
    pub(in crate::core::manager) fn grant_member(&mut self, id: WaiterId, time: GrantTime) -> Option<Reply> {
        let wait = self.parts.waiters.queued(id)?;
        let (lock, request) = (wait.lock(), wait.request().clone());
        self.unbind_earlier(lock, &request.owner);
        match self.grant(&request, ReplyTarget::Waiter) {
            Ok(grant) => {
                if time == GrantTime::AtOnce {
                    self.count_grant(grant.before.is_none());
                }
                Some(self.hand_over(lock, id, &request, grant, time))
            }
            Err(_) => defect!("a member that is next cannot be granted", None),
        }
    }

    /// Whether the holders admit this request and its records can be written.
    pub(in crate::core::manager) fn may_grant(&mut self, request: &Request) -> Verdict {
        let owner = request.owner.as_bytes();
        match self.admits(owner, request.wants) {
            Admission::Busy => return Verdict::Busy { quarantined: self.is_quarantined(request) },
            Admission::Overflow => return Verdict::Refused(Refusal::Overflow),
            Admission::Grant(_) => {}
        }
        let hold = self.holders.get(owner);
        let re_entry = hold.filter(|hold| hold.allows_more(request.wants.mode));
        if request.fence && re_entry.and_then(|hold| hold.token).is_none() {
            if let Err(refusal) = self.records.has_next_token(self.holders.token()) {
                return Verdict::Refused(refusal);
            }
        }
        Verdict::Available
    }

    /// Whether this member can be granted now. Returns `None` if it no longer waits.
    pub(in crate::core::manager) fn try_member(&mut self, id: WaiterId) -> Option<Verdict> {
        let wait = self.parts.waiters.queued(id)?;
        let (lock, position, request) = (wait.lock(), wait.position(), wait.request().clone());
        let state = self.parts.state(lock)?;
        let is_left_free = self.holders.is_free() && state.yields(MonoUs::MAX, self.now);
        let waits_elsewhere = |id| self.parts.waiters.waits_elsewhere(id);
        if self.is_unfinished || is_left_free || state.queue().must_wait(position, waits_elsewhere) {
            return Some(Verdict::Busy { quarantined: false });
        }
        Some(self.may_grant(&request))
    }
}
