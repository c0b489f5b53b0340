// SPDX-License-Identifier: MIT

//! A lock that a majority of independent servers grants: the algorithm Redlock, with fencing tokens that grow.
//!
//! A hold is valid while a majority of the servers have it. Two majorities have a server in common, so two holds cannot be valid
//! at once, as long as no server forgets what it granted and all clocks run at about the same speed.
//!
//! Each server counts tokens of its own. The token of a hold is the greatest one of a majority: the majority with the smallest
//! tokens, if more than a majority granted it. That alone does not make it greater than the token before, which may have come
//! from a server that does not take part this time. So a hold counts only when a majority of the servers know a token as great:
//! those that gave one themselves, and those that were told. At least one of them is in the next majority, and gives a greater
//! one. No clock is needed for that.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::RedisResult;
use uuid::Uuid;

use super::server::{Claim, Server, Vote};

/// The servers, as one client sees them.
pub(crate) struct Redlock {
    servers: Vec<Server>,
    limit: Duration,
    random: StdRng,
}

/// A lock that was granted.
pub(crate) struct Hold {
    claim: Claim,
    lease: Duration,
    /// Greater than the token of every hold that was granted before this one was asked for.
    pub(crate) token: i64,
    /// Whoever works longer must renew it before.
    pub(crate) valid_until: Instant,
}

/// Why there is no hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoMajority {
    /// How many servers granted it.
    pub(crate) granted: usize,
    /// How many did not answer.
    pub(crate) silent: usize,
    pub(crate) of: usize,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} servers granted it, {} did not answer", self.granted, self.of, self.silent)
    }
}

impl std::error::Error for NoMajority {}

impl Redlock {
    /// `limit` is how long a call to one server may take: much less than a lease, much more than a round trip.
    pub(crate) fn new<'a>(urls: impl IntoIterator<Item = &'a str>, limit: Duration) -> RedisResult<Redlock> {
        let servers = urls.into_iter().map(|url| Server::new(url, limit)).collect::<RedisResult<_>>()?;
        let random = StdRng::seed_from_u64(Uuid::new_v4().as_u64_pair().0);
        Ok(Redlock { servers, limit, random })
    }

    /// Tries to take the lock until it is granted or `patience` is over.
    pub(crate) fn acquire(
        &mut self,
        key: &str,
        lease: Duration,
        patience: Duration,
    ) -> Result<Hold, NoMajority> {
        let deadline = Instant::now() + patience;
        loop {
            let refusal = match self.try_acquire(key, lease) {
                Ok(hold) => return Ok(hold),
                Err(refusal) => refusal,
            };
            // Clients that split the servers among themselves would do so again and again if they came back in step.
            let pause = self.random.random_range(Duration::ZERO..=self.limit);
            if Instant::now() + pause >= deadline {
                return Err(refusal);
            }
            thread::sleep(pause);
        }
    }

    /// Tries to take the lock once.
    pub(crate) fn try_acquire(&mut self, key: &str, lease: Duration) -> Result<Hold, NoMajority> {
        let [owner, request] = [(); 2].map(|()| Uuid::new_v4().to_string());
        let claim = Claim { key: key.to_owned(), owner, request };
        let asked = Instant::now();
        let votes = self.on_each(|server, _| server.acquire(&claim, millis(lease)));
        let tokens: Vec<Option<i64>> = votes.iter().map(Vote::token).collect();
        if let Some(token) = self.token_of_majority(&tokens) {
            let valid_until = end_of_validity(asked, lease);
            if self.make_known(&claim, token, &tokens) && Instant::now() < valid_until {
                return Ok(Hold { claim, lease, token, valid_until });
            }
        }
        // Also those that did not answer: they may have granted it, or may still do so.
        self.on_each(|server, _| server.cancel(&claim));
        Err(NoMajority {
            granted: tokens.iter().flatten().count(),
            silent: votes.iter().filter(|vote| matches!(vote, Vote::Silent)).count(),
            of: votes.len(),
        })
    }

    /// Lets the lease run anew. If that fails, the hold is valid as long as it was.
    pub(crate) fn renew(&mut self, hold: &mut Hold) -> bool {
        let asked = Instant::now();
        // When it is over, others may have had the lock meanwhile.
        if asked >= hold.valid_until {
            return false;
        }
        let renewed = self.on_each(|server, _| server.renew(&hold.claim, millis(hold.lease)));
        let valid_until = end_of_validity(asked, hold.lease);
        let is_renewed = self.is_majority(renewed) && Instant::now() < hold.valid_until.min(valid_until);
        if is_renewed {
            hold.valid_until = valid_until;
        }
        is_renewed
    }

    /// Gives the lock back, at all servers.
    pub(crate) fn release(&mut self, hold: Hold) {
        self.on_each(|server, _| server.undo(&hold.claim));
    }

    /// The greatest token of the majority with the smallest ones: a server whose clock is far ahead does not matter if it is
    /// not needed. `None` if no majority has granted it.
    fn token_of_majority(&self, tokens: &[Option<i64>]) -> Option<i64> {
        let mut given: Vec<i64> = tokens.iter().flatten().copied().collect();
        given.sort_unstable();
        given.get(self.servers.len() / 2).copied()
    }

    /// Returns whether a majority knows a token that is at least as great. If all servers have granted it, that is so already.
    fn make_known(&mut self, claim: &Claim, token: i64, tokens: &[Option<i64>]) -> bool {
        let knows = |own: &Option<i64>| own.is_some_and(|own| own >= token);
        self.is_majority(tokens.iter().map(knows)) || {
            let told = self.on_each(|server, at| {
                knows(&tokens[at]) || tokens[at].is_some() && server.make_known(claim, token)
            });
            self.is_majority(told)
        }
    }

    fn is_majority(&self, votes: impl IntoIterator<Item = bool>) -> bool {
        votes.into_iter().filter(|vote| *vote).count() > self.servers.len() / 2
    }

    /// Calls all servers at the same time, so that one that does not answer delays nothing but the end.
    fn on_each<T: Send>(&mut self, call: impl Fn(&mut Server, usize) -> T + Sync) -> Vec<T> {
        let call = &call;
        thread::scope(|scope| {
            let servers = self.servers.iter_mut().enumerate();
            let calls: Vec<_> = servers.map(|(at, server)| scope.spawn(move || call(server, at))).collect();
            let join = |call: thread::ScopedJoinHandle<'_, T>| {
                call.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            calls.into_iter().map(join).collect()
        })
    }
}

/// A server counts its lease from when the call arrived, so not before `asked`, and its clock may run faster than ours.
fn end_of_validity(asked: Instant, lease: Duration) -> Instant {
    let drift = lease / 100 + Duration::from_millis(2);
    asked + lease.saturating_sub(drift)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
