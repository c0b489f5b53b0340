// SPDX-License-Identifier: MIT

//! The server's processor time for one hand-over of a contended lock, by the number of waiters. One client holds the lock, and
//! the others wait. Each client that has released the lock queues up again. With Redisson's protocol, a release is published to
//! all waiters, and all of them try again.

mod support;

use std::time::Duration;

use support::machine::{raise_open_files, Cores};
use support::picture::{self, Axis, Line};
use support::race::{self, Kind, Load, Race};
use support::results::{Results, Target, Unit};
use support::samples::Samples;
use support::server::{Server, Setup, CLIENTS};
use support::{is_requested, thousands, unless_quick, Outcome};

const WAITERS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const SUBSCRIBERS: [usize; 3] = [1, 10, 100];

fn main() -> Outcome<()> {
    if !is_requested("handover") {
        return Ok(());
    }
    // Reserves some open files for this process.
    let limit = raise_open_files(CLIENTS + 100);
    let waiters: Vec<usize> = WAITERS.into_iter().filter(|waiters| waiters + 100 < limit).collect();
    let cores = Cores::share(1);
    let mut server = Setup::new().on_cores(&cores.server).start()?;
    let mut native = vec![Samples::default(); waiters.len()];
    let mut protocol = vec![Samples::default(); SUBSCRIBERS.len()];
    for round in 0..unless_quick(5, 1) {
        eprintln!("round {}", round + 1);
        for (waiters, samples) in waiters.iter().zip(&mut native) {
            samples.0.push(cost(&mut server, &cores, Kind::Native, *waiters)?);
        }
        for (waiters, samples) in SUBSCRIBERS.iter().zip(&mut protocol) {
            samples.0.push(cost(&mut server, &cores, Kind::Protocol, *waiters)?);
        }
    }
    let curve = |counts: &[usize], samples: &[Samples]| -> Vec<(f64, f64)> {
        counts.iter().zip(samples).map(|(count, samples)| (*count as f64, samples.median())).collect()
    };
    let (native, protocol) = (curve(&waiters, &native), curve(&SUBSCRIBERS, &protocol));
    let at = |curve: &[(f64, f64)], count: usize| {
        curve.iter().find(|point| point.0 == count as f64).map_or(f64::NAN, |point| point.1)
    };
    let mut results = Results::of("handover");
    let few = at(&native, 10);
    for waiters in WAITERS {
        let what = format!("hand-over: server's time, {} waiting", thousands(waiters));
        let target = if waiters > 10 { Target::AtMost(1.5) } else { Target::None };
        results.ratio(&what, Unit::Micros, at(&native, waiters), ("10 waiting", few), target);
    }
    for waiters in SUBSCRIBERS {
        let what = format!("hand-over: publish/subscribe, {} waiting", thousands(waiters));
        let target = if waiters == 100 { Target::AtLeast(25.0) } else { Target::None };
        results.ratio(&what, Unit::Micros, at(&protocol, waiters), ("native", at(&native, waiters)), target);
    }
    picture::draw(
        "handover",
        "What one hand-over costs the server",
        &Axis { label: "clients that wait", is_logarithmic: true },
        &Axis { label: "microseconds of the server's time", is_logarithmic: true },
        &[
            Line { name: "this module".to_owned(), is_ours: true, points: native },
            Line {
                name: "Redisson's publish/subscribe protocol".to_owned(),
                is_ours: false,
                points: protocol,
            },
        ],
    )?;
    results.finish(&mut server)
}

/// Returns the server's time for a hand-over with this number of waiters, in microseconds.
fn cost(server: &mut Server, cores: &Cores, kind: Kind, waiters: usize) -> Outcome<f64> {
    let time = Duration::from_millis(unless_quick(1500, 500));
    let Race { cpu_per_grant, .. } =
        race::on_redis(server, cores, kind, Load::on_one_lock(waiters + 1), time)?;
    Ok(cpu_per_grant)
}
