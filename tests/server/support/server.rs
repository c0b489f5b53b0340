// SPDX-License-Identifier: MIT

//! Real servers: each in a folder of its own, on a free port, gone with its test.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::client::{show, Client, PATIENCE};
use super::network::{into_new_network, Machine};

/// Makes [`Flavor`] of the lines of `servers.rs`.
#[macro_export]
macro_rules! flavors {
    ([] $({ $name:ident $variant:ident $kind:ident $program:literal $package:literal $needed:ident $run:ident })*) => {
        /// The servers that the module is tested on, see [`servers`](super::servers).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Flavor { $($variant),* }

        impl Flavor {
            pub fn is_valkey(self) -> bool {
                let kind = match self { $(Flavor::$variant => stringify!($kind)),* };
                kind == "Valkey"
            }

            /// The path that its line has.
            fn path(self) -> &'static str {
                match self { $(Flavor::$variant => $program),* }
            }

            fn is_required(self) -> bool {
                let needed = match self { $(Flavor::$variant => stringify!($needed)),* };
                needed == "required"
            }
        }

        /// What each answered when it was asked for its version.
        static VERSIONS: [OnceLock<Option<(u32, u32)>>; [$($program),*].len()] =
            [const { OnceLock::new() }; [$($program),*].len()];
    };
}

crate::with_all_servers!(flavors []);

impl Flavor {
    /// Where `make setup` puts the program.
    pub fn program(self) -> PathBuf {
        let path = Path::new(self.path());
        match path.parent() {
            Some(folder) if folder != Path::new("") => {
                Path::new(env!("CARGO_MANIFEST_DIR")).join("target/servers").join(path)
            }
            _ => path.to_owned(),
        }
    }

    /// Major and minor version of the program; nothing if it does not run here.
    fn found(self) -> Option<(u32, u32)> {
        *VERSIONS[self as usize].get_or_init(|| {
            let output = Command::new(self.program()).arg("--version").stderr(Stdio::null()).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            let mut numbers = text.split_once("v=")?.1.split(['.', ' ']).map_while(|part| part.parse().ok());
            Some((numbers.next()?, numbers.next()?))
        })
    }

    /// False, with a word about it, if the server is not installed. With `REQUIRE_ALL_SERVERS` set, that is a
    /// failure if it is a required one.
    pub fn is_installed(self) -> bool {
        if self.found().is_some() {
            return true;
        }
        let required = std::env::var_os("REQUIRE_ALL_SERVERS").is_some() && self.is_required();
        assert!(!required, "{self:?} is not installed");
        eprintln!("SKIPPED: {self:?} is not installed, see `make setup`");
        false
    }

    /// True if it is Redis of this version or a later one, or Valkey, which began with Redis 7.2.
    fn has_all_of_redis(self, version: (u32, u32)) -> bool {
        assert!(version <= (7, 2), "later versions of Redis say nothing of Valkey");
        self.is_valkey_or_redis(version)
    }

    /// True if it is any Valkey, or Redis of this version or a later one.
    fn is_valkey_or_redis(self, version: (u32, u32)) -> bool {
        self.is_valkey() || self.found() >= Some(version)
    }

    /// `CLIENT UNBLOCK` can end a wait: on other servers it would race with a grant.
    pub fn may_unblock(self) -> bool {
        self.is_valkey_or_redis((7, 4))
    }

    /// A module chooses the ACL categories of its commands.
    pub fn lets_modules_choose_categories(self) -> bool {
        self.has_all_of_redis((7, 2))
    }

    /// `ACL CAT` names these commands. Redict 7.3 knows them, and does not.
    pub fn lists_commands_of_modules(self) -> bool {
        self.is_valkey_or_redis((7, 4))
    }

    /// A module makes an ACL category of its own.
    pub fn lets_modules_make_categories(self) -> bool {
        self.is_valkey_or_redis((7, 4))
    }

    /// `INFO stats` says how often the event loop has gone round.
    pub fn counts_its_cycles(self) -> bool {
        self.has_all_of_redis((7, 2))
    }

    /// Debug and module commands must be allowed before clients may use them.
    fn protects_commands(self) -> bool {
        self.has_all_of_redis((7, 0))
    }
}

/// The module that is tested, built from the sources as they are.
pub fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        if let Some(path) = std::env::var_os("REDIS_LOCK_MODULE") {
            return PathBuf::from(path);
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo).args(["build", "--release", "--quiet"]).current_dir(root).status();
        assert!(built.is_ok_and(|status| status.success()), "the module does not build");
        root.join("target/release/libredis_lock.so")
    })
}

/// Loads the module into a running server.
pub fn load_module(client: &mut Client) -> String {
    client.call_args(&[b"MODULE", b"LOAD", module().to_str().unwrap().as_bytes()])
}

/// Unloads it again, as soon as nothing of it is at work. No client that has used a command of it may be used again.
pub fn unload_module(client: &mut Client) {
    assert_eq!(client.call("CONFIG SET lock.allow-unload yes"), "OK");
    until("nothing of the module is at work", || client.call("MODULE UNLOAD lock") == "OK");
}

/// A running server.
pub struct Server {
    pub flavor: Flavor,
    pub host: Ipv4Addr,
    pub port: u16,
    pub dir: TempDir,
    child: Child,
}

impl Server {
    /// Starts a server that has loaded the module, with more arguments if need be.
    pub fn with_module(flavor: Flavor, args: &[&str]) -> Server {
        Server::with_module_args(flavor, &[], args)
    }

    /// Starts a server that has loaded the module with arguments of its own.
    pub fn with_module_args(flavor: Flavor, module_args: &[&str], args: &[&str]) -> Server {
        let mut all = vec!["--loadmodule", module().to_str().unwrap()];
        all.extend(module_args);
        all.extend(args);
        Server::start(flavor, &all)
    }

    /// Starts a server without the module.
    pub fn start(flavor: Flavor, args: &[&str]) -> Server {
        Server::start_in(flavor, tempfile::tempdir().unwrap(), args)
    }

    /// Starts a server in a folder that may have data already.
    pub fn start_in(flavor: Flavor, dir: TempDir, args: &[&str]) -> Server {
        Server::start_with(flavor, dir, &[], args)
    }

    /// Starts a server on a machine that it has to itself.
    pub fn start_on(machine: Machine<'_>, flavor: Flavor, args: &[&str]) -> Server {
        Server::start_at(Some(machine), flavor, tempfile::tempdir().unwrap(), &[], args)
    }

    fn start_with(flavor: Flavor, dir: TempDir, env: &[(&str, &str)], args: &[&str]) -> Server {
        Server::start_at(None, flavor, dir, env, args)
    }

    fn start_at(
        machine: Option<Machine<'_>>,
        flavor: Flavor,
        dir: TempDir,
        env: &[(&str, &str)],
        args: &[&str],
    ) -> Server {
        let host = machine.map_or(Ipv4Addr::LOCALHOST, Machine::host);
        for _ in 0..10 {
            let port = free_port();
            let mut command = Server::command(flavor, port, dir.path(), env, args);
            if machine.is_some() {
                // SAFETY: a system call of a process with one thread, and nothing else.
                unsafe { command.pre_exec(into_new_network) };
            }
            let mut child = spawn(command, flavor);
            if let Some(machine) = machine {
                machine.plug_in(child.id());
            }
            match wait_until_ready(&mut child, host, port) {
                Ok(()) => return Server { flavor, host, port, dir, child },
                Err(None) => {
                    let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
                    // Somebody else was faster to take the port.
                    if log.contains("Address already in use") {
                        continue;
                    }
                    panic!("{flavor:?} did not start:\n{log}");
                }
                Err(why) => panic!("{flavor:?} did not answer: {why:?}"),
            }
        }
        panic!("no free port")
    }

    /// Starts a server with the module whose wall clock is [`set_clock`](Server::set_clock).
    pub fn with_own_clock(flavor: Flavor) -> Server {
        Server::with_own_clock_in(flavor, TempDir::new().unwrap(), &[])
    }

    /// The same in a folder that may have data already, and the clock that wrote it.
    pub fn with_own_clock_in(flavor: Flavor, dir: TempDir, args: &[&str]) -> Server {
        let (clock, library) = (dir.path().join("clock"), dir.path().join("clock.so"));
        if !library.exists() {
            fs::write(&clock, 0i64.to_ne_bytes()).unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/support/clock.c");
            let built =
                Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
            assert!(built.is_ok_and(|status| status.success()), "the clock does not build");
        }
        let (clock, library) = (clock.to_str().unwrap().to_owned(), library.to_str().unwrap().to_owned());
        let env = [("LD_PRELOAD", library.as_str()), ("CLOCK_FILE", clock.as_str())];
        Server::start_with(flavor, dir, &env, &[&["--loadmodule", module().to_str().unwrap()], args].concat())
    }

    /// Sets the wall clock of such a server this many seconds off.
    pub fn set_clock(&self, off: i64) {
        let mut clock = fs::OpenOptions::new().write(true).open(self.dir.path().join("clock")).unwrap();
        // In place: the server has the file mapped.
        clock.write_all(&off.to_ne_bytes()).unwrap();
    }

    /// Starts a server that is expected to end by itself; returns its log.
    pub fn log_of_failing(flavor: Flavor, args: &[&str]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let mut child = spawn(Server::command(flavor, free_port(), dir.path(), &[], args), flavor);
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{flavor:?} runs, where it should have refused to start");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        fs::read_to_string(dir.path().join("log")).unwrap()
    }

    fn command(flavor: Flavor, port: u16, dir: &Path, env: &[(&str, &str)], args: &[&str]) -> Command {
        let log = fs::File::create(dir.join("log")).unwrap();
        let mut command = Command::new(flavor.program());
        // A configuration file comes before the options.
        let (file, args) = match args.split_first() {
            Some((first, rest)) if first.ends_with(".conf") => (Some(first), rest),
            _ => (None, args),
        };
        command.args(file);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--dir", dir.to_str().unwrap()]);
        command.args(["--repl-diskless-sync-delay", "0", "--appendfsync", "no"]);
        if flavor.protects_commands() {
            command.args(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
        }
        command.envs(env.iter().copied());
        command.args(args).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command
    }

    pub fn client(&self) -> Client {
        Client::connect_to(self.host, self.port)
    }

    /// Where programs find it.
    pub fn url(&self) -> String {
        format!("redis://{}:{}", self.host, self.port)
    }

    /// A client that has sent this command and is blocked by it.
    pub fn waiting(&self, command: &str) -> Client {
        let mut client = self.client();
        client.send(command);
        self.until_blocked(&client);
        client
    }

    /// Makes it a replica, and waits until it is in sync.
    pub fn follow(&self, primary: &Server) {
        let mut client = self.client();
        assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port)), "OK");
        until("the replica is in sync", || client.info("replication", "master_link_status") == "up");
    }

    /// Waits until the client is blocked.
    pub fn until_blocked(&self, client: &Client) {
        let mut watcher = self.client();
        until(&format!("client {} is blocked", client.id), || is_blocked(&mut watcher, client));
    }

    /// As [`waiting`](Server::waiting), at a node of a cluster that may not know yet what it serves.
    pub fn waiting_when_it_serves(&self, command: &str) -> Client {
        let mut waiting = None;
        until("the node lets somebody wait", || {
            let (mut watcher, mut client) = (self.client(), self.client());
            client.send(command);
            until("it waits or is answered", || is_blocked(&mut watcher, &client) || !client.has_nothing());
            if client.has_nothing() {
                waiting = Some(client);
                return true;
            }
            let reply = client.recv();
            let refusals = ["MOVED ", "CLUSTERDOWN ", "READONLY ", "UNBLOCKED ", "LOADING ", "MASTERDOWN "];
            assert!(refusals.iter().any(|refusal| reply.starts_with(refusal)), "{reply}");
            false
        });
        waiting.unwrap()
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the process is our child, and not reaped before `self` is dropped.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    /// Waits until the process has ended; true if it did so by itself and without an error.
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

    /// Ends the server at once and keeps its folder.
    pub fn stop(mut self) -> TempDir {
        std::mem::replace(&mut self.dir, TempDir::new().unwrap())
    }

    /// Fails if the server is not alive and well.
    pub fn assert_healthy(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "the server has ended");
        let log = self.log();
        for bad in ["defect in redis-lock", "ASSERTION FAILED", "BUG REPORT", "API misuse"] {
            assert!(!log.contains(bad), "the log says: {bad}");
        }
        assert_eq!(self.client().call("PING"), "PONG");
    }
}

impl Server {
    /// Lets the server end by itself, if it does: what it has not given back by then is a leak, to those who look for them.
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

impl Drop for Server {
    fn drop(&mut self) {
        if std::env::var_os("SHUT_SERVERS_DOWN").is_some() {
            self.shut_down();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- log of {:?} on port {}", self.flavor, self.port);
            for line in last.into_iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}

fn is_blocked(watcher: &mut Client, client: &Client) -> bool {
    let line = watcher.call(&format!("CLIENT LIST ID {}", client.id));
    line.split_whitespace().any(|word| word.starts_with("flags=") && word.contains('b'))
}

/// Waits for a condition, and fails if it does not come.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn spawn(mut command: Command, flavor: Flavor) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("{flavor:?} cannot be started: {error}"))
}

/// `Err(None)`: the process has ended.
fn wait_until_ready(child: &mut Child, host: Ipv4Addr, port: u16) -> Result<(), Option<String>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if child.try_wait().unwrap().is_some() {
            return Err(None);
        }
        let answer = Client::try_connect_to(host, port).and_then(|mut client| {
            client.try_send("INFO server")?;
            let info = show(&client.try_recv()?);
            // While it loads its data it answers INFO already.
            client.try_send("PING")?;
            Ok((info, show(&client.try_recv()?)))
        });
        // Somebody else may have been faster to take the port, and answers while our server gives up.
        let ours = format!("process_id:{}", child.id());
        let why = match answer {
            Ok((info, pong)) if pong == "PONG" && info.lines().any(|line| line == ours) => return Ok(()),
            Ok((_, other)) | Err(other) => other,
        };
        if Instant::now() > deadline {
            return Err(Some(why));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        // A node of a cluster listens 10000 above too.
        if port < 55_000 {
            return port;
        }
    }
}
