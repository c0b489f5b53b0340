// SPDX-License-Identifier: MIT

//! The process of a server. It has its own folder and a free port, and it ends when its value is dropped.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::client::{show, Client, PATIENCE};
use crate::faults::network::{into_new_network, Machine};

/// A server that is about to be started.
pub struct Launch<'a> {
    program: PathBuf,
    dir: TempDir,
    wrapper: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    machine: Option<Machine<'a>>,
    tied: Option<Vec<usize>>,
    patience: Duration,
}

impl<'a> Launch<'a> {
    /// Starts in a folder that may have data already.
    pub fn new(program: impl Into<PathBuf>, dir: TempDir, args: &[&str]) -> Launch<'a> {
        Launch {
            program: program.into(),
            dir,
            wrapper: Vec::new(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: Vec::new(),
            machine: None,
            tied: None,
            patience: PATIENCE,
        }
    }

    pub fn env(mut self, env: &[(&str, &str)]) -> Launch<'a> {
        self.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        self
    }

    /// Runs the server under another program, such as valgrind, in the server's folder.
    pub fn under(mut self, wrapper: &[&str]) -> Launch<'a> {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    pub fn on_machine(mut self, machine: Machine<'a>) -> Launch<'a> {
        self.machine = Some(machine);
        self
    }

    /// Restricts the server to these cores, and ends it with the calling thread, see [`tie`].
    pub fn tied(mut self, cores: &[usize]) -> Launch<'a> {
        self.tied = Some(cores.to_vec());
        self
    }

    /// Sets how long the server may take until it replies.
    pub fn patience(mut self, patience: Duration) -> Launch<'a> {
        self.patience = patience;
        self
    }

    /// Starts the server, and waits until it has loaded its data and replies.
    pub fn start(self) -> Result<Process, String> {
        let host = self.machine.map_or(Ipv4Addr::LOCALHOST, Machine::host);
        for _ in 0..10 {
            let port = free_port();
            let mut child = self.spawn(port)?;
            match wait_until_ready(&mut child, host, port, self.patience) {
                Ok(()) => return Ok(Process { host, port, dir: self.dir, child }),
                Err(NotReady::HasEnded) => {
                    let log = read_log(self.dir.path());
                    // Another process took the port first.
                    if !log.contains("Address already in use") {
                        return Err(format!("{} did not start:\n{log}", self.program.display()));
                    }
                }
                Err(NotReady::Timeout(why)) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    let log = read_log(self.dir.path());
                    return Err(format!("{} did not answer: {why}\n{log}", self.program.display()));
                }
            }
        }
        Err("no free port".to_owned())
    }

    /// Starts a server that must refuse to run, and returns its log.
    pub fn log_of_failing(self) -> String {
        let mut child = self.spawn(free_port()).unwrap_or_else(|why| panic!("{why}"));
        let deadline = Instant::now() + self.patience;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{} runs, but should have refused to start", self.program.display());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        read_log(self.dir.path())
    }

    fn spawn(&self, port: u16) -> Result<Child, String> {
        let log = File::create(self.dir.path().join("log")).map_err(|error| error.to_string())?;
        let mut words = self.wrapper.iter().map(Path::new).chain([self.program.as_path()]);
        let mut command = Command::new(words.next().unwrap_or(&self.program));
        command.args(words);
        // A configuration file comes before the options.
        let has_file = self.args.first().is_some_and(|first| first.ends_with(".conf"));
        let (file, args) = self.args.split_at(usize::from(has_file));
        command.args(file);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(self.dir.path());
        command.args(["--repl-diskless-sync-delay", "0"]);
        command.args(args).envs(self.env.iter().map(|(name, value)| (name, value)));
        if !self.wrapper.is_empty() {
            command.current_dir(self.dir.path());
        }
        command.stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(|error| error.to_string())?).stderr(log);
        if let Some(cores) = &self.tied {
            tie(&mut command, cores);
        }
        if self.machine.is_some() {
            // SAFETY: between fork and exec, the child makes a system call and nothing else.
            unsafe { command.pre_exec(into_new_network) };
        }
        let child = command.spawn().map_err(|error| {
            format!("{} cannot be started: {error}", command.get_program().to_string_lossy())
        })?;
        if let Some(machine) = self.machine {
            machine.plug_in(child.id());
        }
        Ok(child)
    }
}

/// A running server.
pub struct Process {
    pub host: Ipv4Addr,
    pub port: u16,
    pub dir: TempDir,
    child: Child,
}

impl Process {
    pub fn client(&self) -> Client {
        Client::connect_to(self.host, self.port)
    }

    /// Returns the address for programs.
    pub fn url(&self) -> String {
        format!("redis://{}:{}", self.host, self.port)
    }

    /// Returns what the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.id()).unwrap()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is our child, and not reaped before `self` is dropped.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the process has ended, without a time limit.
    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    /// Waits until the process has ended. Returns true unless a signal or an error ended it.
    pub fn ended_well(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the server and keeps its folder.
    pub fn stop(mut self) -> TempDir {
        std::mem::replace(&mut self.dir, TempDir::new().unwrap())
    }

    /// Shuts the server down in order, so that a leak detector reports the memory that it has not freed.
    fn shut_down(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        self.signal(libc::SIGCONT);
        self.signal(libc::SIGTERM);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::env::var_os("SHUT_SERVERS_DOWN").is_some() {
            self.shut_down();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = read_log(self.dir.path());
            let last: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- log of the server on port {}", self.port);
            for line in last.into_iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}

enum NotReady {
    HasEnded,
    Timeout(String),
}

fn wait_until_ready(
    child: &mut Child,
    host: Ipv4Addr,
    port: u16,
    patience: Duration,
) -> Result<(), NotReady> {
    let deadline = Instant::now() + patience;
    loop {
        if child.try_wait().unwrap().is_some() {
            return Err(NotReady::HasEnded);
        }
        let answer = Client::try_connect_to(host, port).and_then(|mut client| {
            client.try_send("INFO server")?;
            let info = show(&client.try_recv()?);
            // A server replies to INFO while it is still loading its data.
            client.try_send("PING")?;
            Ok((info, show(&client.try_recv()?)))
        });
        // The reply may come from another process that took the port, while our server fails to start.
        let ours = format!("process_id:{}", child.id());
        let why = match answer {
            Ok((info, pong)) if pong == "PONG" && info.lines().any(|line| line == ours) => return Ok(()),
            Ok((_, other)) | Err(other) => other,
        };
        if Instant::now() > deadline {
            return Err(NotReady::Timeout(why));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read_log(dir: &Path) -> String {
    fs::read_to_string(dir.join("log")).unwrap_or_default()
}

fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        // A node of a cluster also listens on this port plus 10,000.
        if port < 55_000 {
            return port;
        }
    }
}

/// Restricts the calling thread, and the threads and processes that it starts, to these cores.
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

/// Ends the calling process, which is about to become another program, with the thread that has started it.
pub fn end_with_parent() {
    // SAFETY: the system call takes two numbers and no pointer.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Restricts a program that is about to be started to these cores, and ends it with the calling thread. With an empty list, the
/// program runs on any core.
pub fn tie(command: &mut Command, cores: &[usize]) {
    let cores = cores.to_vec();
    // SAFETY: between fork and exec, the child makes system calls and nothing else.
    unsafe {
        command.pre_exec(move || -> io::Result<()> {
            end_with_parent();
            if !cores.is_empty() {
                pin(&cores);
            }
            Ok(())
        });
    }
}

/// Waits for a condition. Panics if it is not met in time.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
