//! What the core must do, said in the plainest way.

use super::*;

/// One lock of the model.
#[derive(Default)]
pub(super) struct ModelLock {
    pub(super) hold: Option<ModelHold>,
    pub(super) other: bool,
    pub(super) queue: Vec<ModelWaiter>,
}

pub(super) struct ModelHold {
    pub(super) owner: usize,
    pub(super) holds: i64,
    pub(super) expires_at: i64,
    /// Which hold of the lock's history it is: taking back concerns this one or nothing.
    pub(super) number: u64,
}

pub(super) struct ModelWaiter {
    pub(super) id: WaiterId,
    pub(super) owner: usize,
    pub(super) lease: i64,
    pub(super) deadline: Option<i64>,
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) locks: [ModelLock; 2],
    pub(super) now: i64,
    pub(super) paused: bool,
    pub(super) holds_ever: u64,
    pub(super) waiters_ever: u64,
    /// Grants that have not arrived: waiter, lock, owner, number of the hold.
    pub(super) in_flight: Vec<(WaiterId, usize, usize, u64)>,
    pub(super) decisions: Vec<(WaiterId, Decision)>,
}

impl Model {
    /// Everything that is to happen at this moment, happens.
    pub(super) fn settle(&mut self) {
        for lock in 0..2 {
            let now = self.now;
            let mut decisions = Vec::new();
            self.locks[lock].queue.retain(|waiter| {
                let over = waiter.deadline.is_some_and(|at| at <= now);
                if over {
                    decisions.push((waiter.id, Decision::TimedOut));
                }
                !over
            });
            self.decisions.append(&mut decisions);
        }
        if self.paused {
            return;
        }
        for lock in 0..2 {
            if self.locks[lock].other {
                let queue = std::mem::take(&mut self.locks[lock].queue);
                self.decisions.extend(queue.iter().map(|waiter| (waiter.id, Decision::WrongType)));
                continue;
            }
            self.expire(lock);
            loop {
                let locked = &self.locks[lock];
                let next = match &locked.hold {
                    None if locked.queue.is_empty() => None,
                    None => Some(0),
                    Some(hold) => locked.queue.iter().position(|waiter| waiter.owner == hold.owner),
                };
                let Some(next) = next else { break };
                let waiter = self.locks[lock].queue.remove(next);
                let holds = self.grant(lock, waiter.owner, waiter.lease);
                let number = self.locks[lock].hold.as_ref().unwrap().number;
                self.in_flight.push((waiter.id, lock, waiter.owner, number));
                self.decisions.push((waiter.id, Decision::Granted(holds)));
            }
        }
    }

    pub(super) fn expire(&mut self, lock: usize) {
        let now = self.now;
        self.locks[lock].hold.take_if(|hold| now > hold.expires_at);
    }

    pub(super) fn grant(&mut self, lock: usize, owner: usize, lease: i64) -> i64 {
        let expires_at = self.now + lease;
        match &mut self.locks[lock].hold {
            Some(hold) => {
                hold.holds += 1;
                hold.expires_at = expires_at;
                hold.holds
            }
            empty => {
                self.holds_ever += 1;
                *empty = Some(ModelHold { owner, holds: 1, expires_at, number: self.holds_ever });
                1
            }
        }
    }

    pub(super) fn step(&mut self, op: &Op) -> Option<Seen> {
        let seen = self.apply(op);
        self.settle();
        seen
    }

    pub(super) fn apply(&mut self, op: &Op) -> Option<Seen> {
        let now = self.now;
        if let Op::Acquire { lock, .. }
        | Op::Release { lock, .. }
        | Op::Renew { lock, .. }
        | Op::Break { lock } = *op
        {
            if self.locks[lock].other {
                return Some(Seen::WrongType);
            }
            self.expire(lock);
        }
        match *op {
            Op::Acquire { lock, owner, lease, block } => {
                let free = self.locks[lock].hold.as_ref().is_none_or(|hold| hold.owner == owner);
                if free {
                    return Some(Seen::Granted(self.grant(lock, owner, lease)));
                }
                let Some(ms) = block else { return Some(Seen::Busy) };
                self.waiters_ever += 1;
                let id = WaiterId(self.waiters_ever);
                let deadline = (ms > 0).then(|| now + i64::try_from(ms).unwrap());
                self.locks[lock].queue.push(ModelWaiter { id, owner, lease, deadline });
                Some(Seen::Waits(id))
            }
            Op::Release { lock, owner, all, lease } => {
                let hold = &mut self.locks[lock].hold;
                let Some(held) = hold.as_mut().filter(|held| held.owner == owner) else {
                    return Some(Seen::NotOwner);
                };
                held.holds = if all { 0 } else { held.holds - 1 };
                let left = held.holds;
                if left == 0 {
                    *hold = None;
                } else if let Some(lease) = lease {
                    held.expires_at = now + lease;
                }
                Some(Seen::Left(left))
            }
            Op::Renew { lock, owner, lease } => {
                let hold = self.locks[lock].hold.as_mut().filter(|held| held.owner == owner);
                Some(hold.map_or(Seen::NotOwner, |held| {
                    held.expires_at = now + lease;
                    Seen::Granted(held.holds)
                }))
            }
            Op::Break { lock } => Some(Seen::Broken(self.locks[lock].hold.take().iter().count())),
            Op::Delete { lock } => {
                self.locks[lock].hold = None;
                self.locks[lock].other = false;
                None
            }
            Op::Expire { lock, lease } => {
                if let Some(held) = self.locks[lock].hold.as_mut().filter(|held| now <= held.expires_at) {
                    held.expires_at = now + lease;
                }
                None
            }
            Op::Overwrite { lock } => {
                self.locks[lock].hold = None;
                self.locks[lock].other ^= true;
                None
            }
            Op::Flush => {
                for lock in &mut self.locks {
                    lock.hold = None;
                    lock.other = false;
                }
                None
            }
            Op::Pause(paused) => {
                self.paused = paused;
                None
            }
            Op::Leave { .. } | Op::Deliver { .. } | Op::Advance { .. } => None,
        }
    }

    pub(super) fn leave(&mut self, id: WaiterId) {
        for lock in &mut self.locks {
            lock.queue.retain(|waiter| waiter.id != id);
        }
        self.settle();
    }

    pub(super) fn deliver(&mut self, which: usize, arrives: bool) {
        let (_, lock, owner, number) = self.in_flight.remove(which);
        let hold = &mut self.locks[lock].hold;
        if !arrives {
            if let Some(held) = hold.as_mut().filter(|held| (held.owner, held.number) == (owner, number)) {
                held.holds -= 1;
                if held.holds == 0 {
                    *hold = None;
                }
            }
        }
        self.settle();
    }

    pub(super) fn holders(&self, lock: usize) -> Option<Holders> {
        (!self.locks[lock].other).then(|| match &self.locks[lock].hold {
            Some(hold) if self.now <= hold.expires_at => Holders::Exclusive(Hold {
                owner: Owner::new(OWNERS[hold.owner]),
                holds: hold.holds,
                expires_at: hold.expires_at,
                renewed: false,
            }),
            _ => Holders::Free,
        })
    }
}
