// SPDX-License-Identifier: MIT

//! The machine: its cores, the processor time of what runs on it, its limits.

use std::fs;
use std::time::Duration;

use super::Outcome;

/// Who runs where. On cores of their own, a measurement does not depend on where the kernel happens to put them.
pub struct Cores {
    pub server: Vec<usize>,
    pub loaders: Vec<usize>,
}

impl Cores {
    /// So many for the server, and the others for who makes the load. If none are left, all run anywhere.
    pub fn share(for_server: usize) -> Cores {
        let cores = usable_cores();
        match cores.split_at_checked(for_server) {
            Some((server, loaders)) if !loaders.is_empty() => {
                Cores { server: server.to_vec(), loaders: loaders.to_vec() }
            }
            _ => Cores { server: cores.clone(), loaders: cores },
        }
    }

    /// What is to be said of a result if the load had no core of its own.
    pub fn remark(&self) -> &'static str {
        if self.server == self.loaders {
            ", on the same cores as the load"
        } else {
            ""
        }
    }

    /// One for who makes the load.
    pub fn all_but_one() -> Cores {
        Cores::share(usable_cores().len() - 1)
    }
}

/// The cores that the calling thread may use.
fn usable_cores() -> Vec<usize> {
    // SAFETY: the set is plain data, which the call fills.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (0..libc::CPU_SETSIZE as usize).filter(|core| libc::CPU_ISSET(*core, &set)).collect()
    }
}

/// Keeps the calling thread, and the threads and processes that it starts, on these cores.
pub fn pin(cores: &[usize]) {
    // SAFETY: the set is plain data, and the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for core in cores {
            libc::CPU_SET(*core, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Ends the calling process, which is to become another program, with the thread that has started it.
pub fn die_with_parent() {
    // SAFETY: a system call that takes two numbers.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Is its main thread waiting for something? Whoever has just written to a socket that it waits for sees that it is not: the
/// write has woken it.
pub fn is_asleep(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/task/{process}/stat")).unwrap_or_default();
    // `id (name) state …`, and a name may contain anything.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
}

/// Does a debugger or the like look at what it does?
pub fn is_traced(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

/// Processor time that all threads of a process have used.
pub fn cpu_of(process: u32) -> Outcome<Duration> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // A thread may have ended meanwhile.
        sum += cpu_in(&thread?.path().join("schedstat").to_string_lossy()).unwrap_or_default();
    }
    Ok(sum)
}

/// Processor time of a process' main thread.
pub fn main_thread_cpu_of(process: u32) -> Outcome<Duration> {
    cpu_in(&format!("/proc/{process}/task/{process}/schedstat"))
}

/// Processor time of a process and those that it has started.
pub fn cpu_of_family(process: u32) -> Outcome<Duration> {
    let mut sum = cpu_of(process)?;
    for entry in fs::read_dir("/proc")? {
        let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // `id (name) state parent …`, and a name may contain anything.
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

/// Processor time of the calling thread.
pub fn own_thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Raises the number of files that this process and the server may open; returns how many those are.
pub fn raise_open_files(wanted: usize) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the struct that they are given.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_cur.max(limit.rlim_max.min(wanted as libc::rlim_t));
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// How many cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Cores, processor, kernel.
pub fn machine() -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    format!("{} cores, {model}, Linux {}", cores(), kernel.trim())
}

/// Of the last minute. Our own is about 0.4; with more, the machine was not idle.
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or_default().to_owned()
}
