// SPDX-License-Identifier: MIT

//! Machines with a network that can be cut. Each server has a network namespace with two links: one to its clients, and one to
//! the other servers.
//!
//! Needs root, `ip` and `nsenter`. The namespaces end with the thread and the servers.

use std::net::Ipv4Addr;
use std::process::Command;

use crate::artifacts::module;
use crate::server::{Flavor, Server};

/// The network of the calling thread.
pub struct Network(());

/// A machine of a [`Network`], by number.
#[derive(Clone, Copy)]
pub struct Machine<'a>(&'a Network, u8);

impl Network {
    /// Moves the calling thread into a new network, along with the threads and programs that it starts later. Returns `None` and
    /// prints a line if this machine does not permit that.
    pub fn enter() -> Option<Network> {
        Network::try_enter()
            .inspect_err(|why| {
                eprintln!("SKIPPED: no network namespace can be made here, which needs root and ip: {why}")
            })
            .ok()
    }

    fn try_enter() -> Result<Network, String> {
        into_new_network().map_err(|error| error.to_string())?;
        try_run("ip", "link set lo up")?;
        try_run("ip", "link add name peers type bridge")?;
        try_run("ip", "link set peers up")?;
        // Checks whether links can be created.
        try_run("ip", "link add name here type veth peer name there")?;
        try_run("ip", "link del here")?;
        Ok(Network(()))
    }

    /// Starts a server with the module on a new machine.
    pub fn server(&self, machine: u8, flavor: Flavor, module_args: &[&str], args: &[&str]) -> Server {
        let load = ["--loadmodule", module().to_str().unwrap()];
        let open = ["--bind", "0.0.0.0", "--protected-mode", "no"];
        Server::start_on(Machine(self, machine), flavor, &[&load, module_args, &open, args].concat())
    }

    /// Returns the address at which other servers reach a machine.
    pub fn address(&self, machine: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, machine + 1)
    }

    /// Cuts a machine off from the other servers. Clients still reach it.
    pub fn cut_off(&self, machine: u8) {
        ip(&format!("link set peer{machine} down"));
    }

    /// Restores the link of a machine to the other servers.
    pub fn join(&self, machine: u8) {
        ip(&format!("link set peer{machine} up"));
    }

    /// Cuts a machine off from its clients. The clients' kernels send pending packets when the link is restored.
    pub fn cut_clients_off(&self, machine: u8) {
        ip(&format!("link set client{machine} down"));
    }

    /// Restores the link of a machine to its clients.
    pub fn reconnect_clients(&self, machine: u8) {
        ip(&format!("link set client{machine} up"));
    }
}

impl Machine<'_> {
    /// Returns the address at which clients reach the machine.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.1, 2)
    }

    /// Connects the new network namespace of a process.
    pub fn plug_in(self, process: u32) {
        let Machine(network, number) = self;
        ip(&format!("link add name peer{number} type veth peer name peers netns {process}"));
        ip(&format!("link set peer{number} master peers up"));
        ip(&format!("link add name client{number} type veth peer name clients netns {process}"));
        ip(&format!("addr add 10.78.{number}.1/24 dev client{number}"));
        ip(&format!("link set client{number} up"));
        let there = |command: String| run("nsenter", &format!("--target {process} --net ip {command}"));
        there("link set lo up".to_owned());
        there(format!("addr add {}/24 dev peers", network.address(number)));
        there("link set peers up".to_owned());
        there(format!("addr add {}/24 dev clients", self.host()));
        there("link set clients up".to_owned());
    }
}

/// Moves the calling thread into a new, empty network namespace.
pub fn into_new_network() -> std::io::Result<()> {
    // SAFETY: a system call that affects the calling thread only.
    match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn ip(arguments: &str) {
    run("ip", arguments);
}

fn run(program: &str, arguments: &str) {
    try_run(program, arguments).unwrap_or_else(|why| panic!("{why}"));
}

fn try_run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("{program} cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr)))
}
