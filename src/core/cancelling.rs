//! An acquire is undone by its request.

use super::{Decision, Holders, LockRef, Now, Part, Records, Refusal, RequestId, Service};

impl Service {
    /// Undoes the acquire with this request, whatever has become of it: ends its wait, or gives back the hold that it
    /// got. If it is made later, or again, it is refused. Returns whether there was anything to undo.
    pub(crate) fn cancel(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        id: &RequestId,
        now: Now,
    ) -> Result<bool, Refusal> {
        self.begin(lock, holders, records, now);
        let result = self.undo(lock, holders, records, id, now);
        self.finish(lock, holders, records, now);
        self.forget_if_free(lock, holders);
        result
    }

    fn undo(
        &mut self,
        lock: LockRef<'_>,
        holders: &mut Holders,
        records: &mut dyn Records,
        id: &RequestId,
        now: Now,
    ) -> Result<bool, Refusal> {
        if let Some(undone) = records.cancelled(id)? {
            return Ok(undone);
        }
        // A release with the same id gave it back already.
        let given_back = records.released(id)?.is_some();
        let granted = records.granted(id)?.filter(|_| !given_back);
        let waits = self.asked.get(&(lock.to_id(), id.clone())).copied();
        let undone = if let Some(waiter) = waits.and_then(|waiter| self.decide(waiter, Decision::Cancelled)) {
            self.left_behind(&waiter);
            true
        } else if let Some(waiter) = self.in_flight_of(lock, id).filter(|waiter| {
            // Its lease may be over, which nobody has looked at yet.
            let owner = self.in_flight.get(waiter).map(|grant| &grant.request.owner);
            owner.is_some_and(|owner| holders.of(owner.as_bytes()).is_some())
        }) {
            // It may be told in the same turn of the event loop, but not of a grant.
            self.decisions.push((waiter, Decision::Cancelled));
            self.undelivered(waiter);
            self.take_back(lock, holders, records, now);
            true
        } else if let Some(reply) = granted.filter(|_| !self.has_ended(lock, id, now)) {
            let owner = reply.owner.as_ref().unwrap_or(&id.asked);
            let released = holders.release(owner.as_bytes(), Part::OneOf(reply.mode), None).is_ok();
            if released {
                self.unbind_request(lock, owner, id, now);
            }
            released
        } else {
            false
        };
        if !undone && !records.may_grow() {
            return Err(Refusal::NoMemory);
        }
        records.remember_cancel(id, undone, now);
        Ok(undone)
    }
}
