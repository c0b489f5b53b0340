//! The core with a keyspace, a clock and a timer around it, as the module has them in a server.

use std::collections::BTreeMap;

use super::*;

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Lock(Holders),
    Other,
}

/// The core with a keyspace, a clock and a timer around it, as `crate::runtime` has them.
pub(super) struct Real {
    pub(super) service: Service,
    pub(super) keys: BTreeMap<&'static [u8], Stored>,
    pub(super) now: i64,
    pub(super) paused: bool,
    /// Whether the timer fires by itself after each step.
    pub(super) timer: bool,
    pub(super) decisions: Vec<(WaiterId, Decision)>,
}

impl Real {
    pub(super) fn new(timer: bool) -> Real {
        let keys = LOCKS.map(|key| (key, Stored::Lock(Holders::Free))).into();
        Real { service: Service::default(), keys, now: 1_000, paused: false, timer, decisions: Vec::new() }
    }

    pub(super) fn time(&self) -> Now {
        // The clocks are not in step, as in life.
        Now { wall: self.now, mono: self.now.unsigned_abs() * 1000 + 77 }
    }

    /// What opening a key finds: a lease that is over is over.
    pub(super) fn open(&mut self, key: &'static [u8]) -> Result<Holders, ()> {
        let now = self.now;
        let stored = self.keys.get_mut(key).unwrap();
        match stored {
            Stored::Lock(holders) => {
                if holders.expires_at().is_some_and(|at| now > at) {
                    *holders = Holders::Free;
                    // The server raises `expired` for it.
                    let holders = holders.clone();
                    self.service.touched(at(key), true);
                    return Ok(holders);
                }
                Ok(holders.clone())
            }
            Stored::Other => {
                self.service.touched(at(key), false);
                Err(())
            }
        }
    }

    pub(super) fn store(&mut self, key: &'static [u8], mut holders: Holders) {
        if let Holders::Exclusive(hold) = &mut holders {
            hold.renewed = false;
        }
        self.keys.insert(key, Stored::Lock(holders));
    }

    pub(super) fn step(&mut self, op: &Op) -> Option<Seen> {
        let seen = self.apply(op);
        self.decisions.extend(self.service.take_decisions());
        if let Op::Pause(false) = op {
            // The timer that was set again and again meanwhile.
            self.tick();
        }
        if self.timer {
            self.fire();
        }
        seen
    }

    /// Fires the timer as often as it is due now.
    pub(super) fn fire(&mut self) {
        while self.service.next_wakeup(self.time(), !self.paused) == Some(0) {
            self.tick();
        }
    }

    pub(super) fn tick(&mut self) {
        for lock in self.service.tick(self.time(), !self.paused) {
            let key = LOCKS.into_iter().find(|key| **key == *lock.key).unwrap();
            match self.open(key) {
                Ok(mut holders) => {
                    self.service.serve(at(key), &mut holders, self.time());
                    self.store(key, holders);
                }
                Err(()) => self.service.refuse_all(at(key), Decision::WrongType),
            }
        }
        self.decisions.extend(self.service.take_decisions());
    }

    pub(super) fn apply(&mut self, op: &Op) -> Option<Seen> {
        let now = self.time();
        match *op {
            Op::Acquire { lock, owner, lease, block } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let request = Request { owner: Owner::new(OWNERS[owner]), lease_ms: lease };
                let admission = self.service.acquire(at(key), &mut holders, &request, now);
                self.store(key, holders.clone());
                Some(match (admission, block) {
                    (Admission::Grant(holds), _) => Seen::Granted(holds),
                    (Admission::Busy, Some(ms)) => {
                        let deadline = (ms > 0).then(|| now.mono + ms * 1000);
                        Seen::Waits(self.service.wait(at(key), &holders, request, deadline, now))
                    }
                    _ => Seen::Busy,
                })
            }
            Op::Release { lock, owner, all, lease } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let left = self.service.release(at(key), &mut holders, OWNERS[owner], all, lease, now);
                self.store(key, holders);
                Some(left.map_or(Seen::NotOwner, Seen::Left))
            }
            Op::Renew { lock, owner, lease } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let held = self.service.renew(at(key), &mut holders, OWNERS[owner], lease, now);
                self.store(key, holders);
                Some(held.map_or(Seen::NotOwner, Seen::Granted))
            }
            Op::Break { lock } => {
                let key = LOCKS[lock];
                let Ok(mut holders) = self.open(key) else { return Some(Seen::WrongType) };
                let lost = self.service.break_lock(at(key), &mut holders, now);
                self.store(key, holders);
                Some(Seen::Broken(lost))
            }
            Op::Delete { lock } => {
                let key = LOCKS[lock];
                self.store(key, Holders::Free);
                self.service.touched(at(key), true);
                None
            }
            Op::Expire { lock, lease } => {
                let key = LOCKS[lock];
                if let Ok(Holders::Exclusive(hold)) = self.open(key) {
                    self.store(key, Holders::Exclusive(Hold { expires_at: now.wall + lease, ..hold }));
                    self.service.touched(at(key), false);
                }
                None
            }
            Op::Overwrite { lock } => {
                let key = LOCKS[lock];
                let other = self.keys[key] != Stored::Other;
                self.keys.insert(key, if other { Stored::Other } else { Stored::Lock(Holders::Free) });
                // RENAME over it raises an event.
                self.service.touched(at(key), !other);
                None
            }
            Op::Flush => {
                for key in LOCKS {
                    self.store(key, Holders::Free);
                }
                self.service.touched_all(None);
                None
            }
            Op::Pause(paused) => {
                self.paused = paused;
                None
            }
            Op::Leave { .. } | Op::Deliver { .. } | Op::Advance { .. } => None,
        }
    }

    pub(super) fn advance(&mut self, ms: i64) {
        let end = self.now + ms;
        loop {
            let wakeup = self.service.next_wakeup(self.time(), !self.paused);
            let at = wakeup.map_or(end, |ms| self.now + i64::try_from(ms).unwrap());
            if at > end || wakeup.is_none() {
                break;
            }
            self.now = at;
            self.tick();
        }
        self.now = end;
    }

    pub(super) fn waiting(&self, key: &[u8]) -> Vec<WaiterId> {
        self.service.waiters_of(at(key), self.time()).map(|waiter| waiter.id).collect()
    }
}
