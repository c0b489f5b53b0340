// SPDX-License-Identifier: MIT

//! The size and the result of a [`race`](super::race).

use std::time::Duration;

use super::samples::Samples;
use super::Outcome;

/// The result of a race.
#[derive(Clone, Default)]
pub struct Race {
    pub grants_per_second: f64,
    /// The server's processor time per grant, in microseconds, summed over all its threads or processes.
    pub cpu_per_grant: f64,
    /// The times from one client's release to the next client's grant. Empty if there are several locks.
    pub hand_overs: Samples,
    /// The times from a client's call to its grant. Empty for clients that do not record them.
    pub waits: Samples,
}

/// The size of a race. The clients use the locks in turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub clients: usize,
    pub locks: usize,
}

impl Load {
    pub fn on_one_lock(clients: usize) -> Load {
        Load { clients, locks: 1 }
    }
}

/// The answer of a load in another process. `Race.java` of `tests/clients/redisson` describes its format.
#[derive(Debug)]
pub struct RaceAnswer {
    /// All grants, including those before the measured time.
    pub all_grants: f64,
    /// Grants in the measured time.
    pub grants: f64,
    /// The per-mille quantiles.
    pub hand_overs: Samples,
    pub waits: Samples,
}

impl RaceAnswer {
    pub fn parse(answer: &str) -> Outcome<RaceAnswer> {
        let steps = |text: &str| -> Outcome<Samples> {
            let nanos = text.split(',').filter(|nanos| *nanos != "-");
            Ok(Samples(nanos.map(|nanos| Ok(nanos.parse::<f64>()? / 1000.0)).collect::<Outcome<_>>()?))
        };
        match answer.split(' ').collect::<Vec<_>>()[..] {
            [all_grants, grants, hand_overs, waits] => Ok(RaceAnswer {
                all_grants: all_grants.parse()?,
                grants: grants.parse()?,
                hand_overs: steps(hand_overs)?,
                waits: steps(waits)?,
            }),
            _ => Err(format!("the load says {answer}").into()),
        }
    }

    /// Returns the result of a race, with the processor time of the server in the whole race.
    pub fn into_race(self, load: Load, spent: Duration, time: Duration) -> Race {
        Race {
            grants_per_second: self.grants / time.as_secs_f64(),
            cpu_per_grant: spent.as_secs_f64() * 1e6 / self.all_grants,
            hand_overs: self.hand_overs,
            waits: self.waits,
        }
        .of(load)
    }
}

impl Race {
    /// Drops the hand-overs between different locks.
    pub fn of(mut self, load: Load) -> Race {
        if load.locks > 1 {
            self.hand_overs = Samples::default();
        }
        self
    }
}
