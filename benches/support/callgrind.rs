//! Instructions that the server executes for a call.
//!
//! A server under callgrind gets few calls and is ended, another one gets many; the difference of their totals, by the
//! difference of the calls, is the price of one call, without what start and end cost. What the server does once a
//! second by itself, whether it is called or not, can only add to a total: so each is counted more than once, and the
//! least counts. All this hardly depends on what else the machine does, so several are measured at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use super::machine::cores;
use super::paths::Path;
use super::{unless_quick, Outcome};

/// Instructions of each path, in their order.
pub fn measure(paths: &[&Path]) -> Outcome<Vec<f64>> {
    let next = AtomicUsize::new(0);
    let counts = Mutex::new(vec![f64::NAN; paths.len()]);
    std::thread::scope(|scope| {
        let work = || -> Outcome<()> {
            while let Some((at, path)) = paths.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                let count = per_round(path).map_err(|error| format!("{}: {error}", path.name))?;
                eprintln!("{:>10.0}  {}", count, path.name);
                counts.lock().map_err(|_| "a thread has panicked")?[at] = count;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..cores()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread has panicked")?)
    })?;
    Ok(counts.into_inner().map_err(|_| "a thread has panicked")?)
}

fn per_round(path: &Path) -> Outcome<f64> {
    let (few, many) = unless_quick((300, 2300), (200, 700));
    let least = |rounds, repeats| -> Outcome<u64> {
        let totals: Vec<u64> = (0..repeats).map(|_| total(path, rounds)).collect::<Outcome<_>>()?;
        Ok(totals.into_iter().min().unwrap_or(0))
    };
    let (low, high) = (least(few, unless_quick(2, 1))?, least(many, unless_quick(3, 1))?);
    Ok(slope((few, low), (many, high)))
}

fn total(path: &Path, rounds: u32) -> Outcome<u64> {
    let stage = path.stage.set()?;
    stage.play(path.calls, rounds)?;
    stage.server.instructions()
}

/// What each more costs.
pub fn slope((few, low): (u32, u64), (many, high): (u32, u64)) -> f64 {
    (high as f64 - low as f64) / f64::from(many - few)
}
