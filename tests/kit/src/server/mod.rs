// SPDX-License-Identifier: MIT

//! Real servers of each [`Flavor`]. A server stops at the end of its test.

pub mod cluster;
mod flavor;
pub mod list;
pub mod process;
pub mod sentinel;
pub mod tls;
pub mod world;

use std::fs;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::process::Command;

use tempfile::TempDir;

pub use self::flavor::Flavor;
use self::process::{until, Launch, Process};
use crate::artifacts::{module, root};
use crate::client::Client;
use crate::faults::network::Machine;

/// Loads the module into a running server.
pub fn load_module(client: &mut Client) -> String {
    client.call_args(&[b"MODULE", b"LOAD", module().to_str().unwrap().as_bytes()])
}

/// Unloads the module as soon as it has no work left. A client that has called a command of the module must not be used
/// afterwards.
pub fn unload_module(client: &mut Client) {
    assert_eq!(client.call("CONFIG SET lock.allow-unload yes"), "OK");
    until("the module has no work left", || client.call("MODULE UNLOAD lock") == "OK");
}

/// A running server. Dereferences to its [`Process`].
pub struct Server {
    pub flavor: Flavor,
    process: Process,
}

impl Deref for Server {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Server {
    /// Starts a server with the module.
    pub fn with_module(flavor: Flavor, args: &[&str]) -> Server {
        Server::with_module_args(flavor, &[], args)
    }

    /// Starts a server with the module, and passes arguments to the module.
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

    /// Starts a server without the module in a folder that may have data already.
    pub fn start_in(flavor: Flavor, dir: TempDir, args: &[&str]) -> Server {
        Server::launch(flavor, launch(flavor, dir, args))
    }

    /// Starts a server without the module on a new machine.
    pub fn start_on(machine: Machine<'_>, flavor: Flavor, args: &[&str]) -> Server {
        Server::launch(flavor, launch(flavor, tempfile::tempdir().unwrap(), args).on_machine(machine))
    }

    fn launch(flavor: Flavor, launch: Launch<'_>) -> Server {
        let process = launch.start().unwrap_or_else(|why| panic!("{flavor:?}: {why}"));
        Server { flavor, process }
    }

    /// Starts a server with the module, whose wall clock [`set_clock`](Server::set_clock) controls.
    pub fn with_own_clock(flavor: Flavor) -> Server {
        Server::with_own_clock_in(flavor, TempDir::new().unwrap(), &[])
    }

    /// Starts a server with the module and a controlled wall clock, in a folder that may have data already. The clock continues
    /// as it was set when the data was written.
    pub fn with_own_clock_in(flavor: Flavor, dir: TempDir, args: &[&str]) -> Server {
        let (clock, library) = (dir.path().join("clock"), dir.path().join("clock.so"));
        if !library.exists() {
            fs::write(&clock, 0i64.to_ne_bytes()).unwrap();
            let source = root().join("tests/kit/src/server/clock.c");
            let built =
                Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
            assert!(built.is_ok_and(|status| status.success()), "the clock does not build");
        }
        let (clock, library) = (clock.to_str().unwrap().to_owned(), library.to_str().unwrap().to_owned());
        let env = [("LD_PRELOAD", library.as_str()), ("CLOCK_FILE", clock.as_str())];
        let args = [&["--loadmodule", module().to_str().unwrap()], args].concat();
        Server::launch(flavor, launch(flavor, dir, &args).env(&env))
    }

    /// Shifts the wall clock by this many seconds from the true time. The server must have been started with a controlled clock.
    pub fn set_clock(&self, off: i64) {
        let mut clock = fs::OpenOptions::new().write(true).open(self.dir.path().join("clock")).unwrap();
        // Writes in place, because the server has mapped the file.
        clock.write_all(&off.to_ne_bytes()).unwrap();
    }

    /// Starts a server that must refuse to run, and returns its log.
    pub fn log_of_failing(flavor: Flavor, args: &[&str]) -> String {
        launch(flavor, tempfile::tempdir().unwrap(), args).log_of_failing()
    }

    pub fn client(&self) -> Client {
        self.process.client()
    }

    /// Returns the address for programs.
    pub fn url(&self) -> String {
        self.process.url()
    }

    /// Returns a client that has sent this command and is blocked.
    pub fn waiting(&self, command: &str) -> Client {
        let mut client = self.client();
        client.send(command);
        self.until_blocked(&client);
        client
    }

    /// Makes this server a replica, and waits until it is in sync.
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

    /// Returns a client that is blocked by this command at a node of a cluster. Retries while the node does not serve the slot
    /// yet.
    pub fn waiting_when_it_serves(&self, command: &str) -> Client {
        let mut waiting = None;
        until("the node blocks a client", || {
            let (mut watcher, mut client) = (self.client(), self.client());
            client.send(command);
            until("the client is blocked or has a reply", || {
                is_blocked(&mut watcher, &client) || !client.has_nothing()
            });
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

    /// Kills the server and keeps its folder.
    pub fn stop(self) -> TempDir {
        self.process.stop()
    }

    /// Panics if the server has ended, has logged a defect, or does not reply.
    pub fn assert_healthy(&mut self) {
        assert!(!self.has_ended(), "the server has ended");
        let log = self.log();
        for bad in ["defect in redis-lock", "ASSERTION FAILED", "BUG REPORT", "API misuse"] {
            assert!(!log.contains(bad), "the log says: {bad}");
        }
        assert_eq!(self.client().call("PING"), "PONG");
    }
}

/// Prepares a server with the options that all tests need.
fn launch<'a>(flavor: Flavor, dir: TempDir, args: &[&str]) -> Launch<'a> {
    let mut common = vec!["--appendfsync", "no"];
    if flavor.protects_commands() {
        common.extend(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
    }
    // A configuration file comes before the options.
    let has_file = args.first().is_some_and(|first| first.ends_with(".conf"));
    let (file, args) = args.split_at(usize::from(has_file));
    Launch::new(flavor.program(), dir, &[file, &common, args].concat())
}

fn is_blocked(watcher: &mut Client, client: &Client) -> bool {
    let line = watcher.call(&format!("CLIENT LIST ID {}", client.id));
    line.split_whitespace().any(|word| word.starts_with("flags=") && word.contains('b'))
}
