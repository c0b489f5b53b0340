// SPDX-License-Identifier: MIT

//! The queue of one contended lock: calculates the waits without a server.
//!
//! A lock that is served first come, first served is a queue with a single server. A request occupies it for longer than the
//! hold: for the way of the grant to the client, and of the release back, too. So each hold takes one round trip more.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The requests for the lock. All times are in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Requests in a second, independent of each other: a Poisson process.
    pub(crate) per_second: f64,
    /// Mean time of a hold.
    pub(crate) hold: f64,
    pub(crate) spread: Spread,
    /// Time from a call to its reply without a wait.
    pub(crate) round_trip: f64,
}

/// Distribution of the times of holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// All holds take the mean.
    None,
    /// Exponential: many short holds, few long ones.
    Exponential,
}

/// One request for the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Send time of the call.
    pub(crate) at: f64,
    /// Time of the hold.
    pub(crate) hold: f64,
}

impl Load {
    /// Share of the time in which the lock is occupied. From 1 on, the queue grows without end.
    pub(crate) fn utilisation(&self) -> f64 {
        self.per_second * (self.hold + self.round_trip)
    }

    /// Draws `count` random requests. A seed repeats its draws.
    pub(crate) fn requests(&self, count: usize, seed: u64) -> Vec<Request> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut exponential = |mean: f64| -mean * (1.0 - random.random::<f64>()).ln();
        let mut at = 0.0;
        let request = |_| {
            at += exponential(1.0 / self.per_second);
            let hold = match self.spread {
                Spread::None => self.hold,
                Spread::Exponential => exponential(self.hold),
            };
            Request { at, hold }
        };
        (0..count).map(request).collect()
    }
}

/// Returns the time from each call to its grant.
pub(crate) fn waits(requests: &[Request], round_trip: f64) -> Vec<f64> {
    let way = round_trip / 2.0;
    let mut free_at = 0.0;
    let wait = |request: &Request| {
        let granted = (request.at + way).max(free_at);
        let notified = granted + way;
        free_at = notified + request.hold + way;
        notified - request.at
    };
    requests.iter().map(wait).collect()
}
