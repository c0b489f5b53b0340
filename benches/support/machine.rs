// SPDX-License-Identifier: MIT

//! The machine: its cores, the processor time of its processes, its limits.

use std::fs;
use std::time::Duration;

pub use redis_lock_test_kit::server::process::{pin, tie};

use super::Outcome;

/// The cores of the server and of the load. With separate cores, a measurement does not depend on the scheduler of the kernel.
pub struct Cores {
    pub server: Vec<usize>,
    pub loaders: Vec<usize>,
}

impl Cores {
    /// Assigns a number of cores to the server, and the others to the load. If none is left for the load, both use all cores.
    pub fn share(for_server: usize) -> Cores {
        let cores = usable_cores();
        match cores.split_at_checked(for_server) {
            Some((server, loaders)) if !loaders.is_empty() => {
                Cores { server: server.to_vec(), loaders: loaders.to_vec() }
            }
            _ => Cores { server: cores.clone(), loaders: cores },
        }
    }

    /// Returns a note for the results: whether server and load share cores.
    pub fn remark(&self) -> &'static str {
        if self.server == self.loaders {
            ", on the same cores as the load"
        } else {
            ""
        }
    }

    /// Assigns one core to the load, and the others to the server.
    pub fn all_but_one() -> Cores {
        Cores::share(usable_cores().len() - 1)
    }
}

/// Returns the cores that the calling thread may use.
fn usable_cores() -> Vec<usize> {
    // SAFETY: the set is plain data, which the call fills.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|core| libc::CPU_ISSET(*core, &set)).collect()
    }
}

/// Returns true if the main thread of the process sleeps. Once a write to a socket has returned, a thread that waited for that
/// socket no longer sleeps.
pub fn is_asleep(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{process}/stat")).unwrap_or_default();
    // The format is `id (name) state …`. The name may contain any characters.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
}

/// Returns true if a debugger or a similar program traces the process.
pub fn is_traced(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

/// Returns the processor time of all threads of a process.
pub fn cpu_of(process: u32) -> Outcome<Duration> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may have ended since the list was read.
        sum += cpu_in(&thread?.path().join("schedstat").to_string_lossy()).unwrap_or_default();
    }
    Ok(sum)
}

/// Returns the processor time of the main thread of a process.
pub fn main_thread_cpu_of(process: u32) -> Outcome<Duration> {
    cpu_in(&format!("/proc/{process}/task/{process}/schedstat"))
}

/// Returns the processor time of a process and its children.
pub fn cpu_of_family(process: u32) -> Outcome<Duration> {
    let mut sum = cpu_of(process)?;
    for entry in fs::read_dir("/proc")? {
        let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The format is `id (name) state parent …`. The name may contain any characters.
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
        if parent.and_then(|parent| parent.parse().ok()) == Some(process) {
            sum += cpu_of(id).unwrap_or_default();
        }
    }
    Ok(sum)
}

fn cpu_in(schedstat: &str) -> Outcome<Duration> {
    let text = fs::read_to_string(schedstat).map_err(|error| format!("{schedstat}: {error}"))?;
    Ok(Duration::from_nanos(text.split(' ').next().unwrap_or_default().parse()?))
}

/// Returns the processor time of the calling thread.
pub fn own_thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid, and the call writes only to the struct that it points to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Raises the number of files that this process and its servers may open. Returns that number.
pub fn raise_open_files(wanted: usize) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls access only the struct that the valid pointer points to.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_cur.max(limit.rlim_max.min(wanted as libc::rlim_t));
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Returns the number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Describes the machine: cores, processor, kernel.
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    format!("{} cores, {model}, Linux {}", cores(), kernel.trim())
}

/// Returns the load average of the last minute. A benchmark itself causes about 0.4. A higher value means that other programs ran
/// at the same time.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}
