// SPDX-License-Identifier: MIT

//! Machines with a network between them that can be cut: each server has a network namespace, and two links. By one its clients
//! reach it, by the other the servers reach each other.
//!
//! It takes root, and `ip` and `nsenter`. All of it is gone with the thread and the servers.

use std::net::Ipv4Addr;
use std::process::Command;

use super::server::{module, Flavor, Server};

/// The network in which the calling thread is.
pub struct Network(());

/// A machine of it, by number.
#[derive(Clone, Copy)]
pub struct Machine<'a>(&'a Network, u8);

impl Network {
    /// Puts the calling thread into a network of its own, and the threads and programs that it starts from now on. Nothing, with a
    /// word about it, where that cannot be.
    pub fn enter() -> Option<Network> {
        Network::try_enter()
            .inspect_err(|why| {
                eprintln!("SKIPPED: no network of its own can be made here, which takes root and ip: {why}")
            })
            .ok()
    }

    fn try_enter() -> Result<Network, String> {
        into_new_network().map_err(|error| error.to_string())?;
        try_run("ip", "link set lo up")?;
        try_run("ip", "link add name peers type bridge")?;
        try_run("ip", "link set peers up")?;
        // So that it is known now whether there can be any.
        try_run("ip", "link add name here type veth peer name there")?;
        try_run("ip", "link del here")?;
        Ok(Network(()))
    }

    /// A server with the module on a machine of its own.
    pub fn server(&self, machine: u8, flavor: Flavor, module_args: &[&str], args: &[&str]) -> Server {
        let load = ["--loadmodule", module().to_str().unwrap()];
        let open = ["--bind", "0.0.0.0", "--protected-mode", "no"];
        Server::start_on(Machine(self, machine), flavor, &[&load, module_args, &open, args].concat())
    }

    /// Where other servers find one.
    pub fn address(&self, machine: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, machine + 1)
    }

    /// Other servers hear nothing from a machine any more, nor it from them. Clients reach it as before.
    pub fn cut_off(&self, machine: u8) {
        ip(&format!("link set peer{machine} down"));
    }

    pub fn join(&self, machine: u8) {
        ip(&format!("link set peer{machine} up"));
    }

    /// Clients reach a machine no more. What their kernels have to send is sent when they do again.
    pub fn cut_clients_off(&self, machine: u8) {
        ip(&format!("link set client{machine} down"));
    }

    pub fn let_clients_in(&self, machine: u8) {
        ip(&format!("link set client{machine} up"));
    }
}

impl Machine<'_> {
    /// Where clients find its server.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.1, 2)
    }

    /// Links the namespace of a process, which is a new one.
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

/// Puts the calling thread into a namespace in which nothing is yet.
pub fn into_new_network() -> std::io::Result<()> {
    // SAFETY: concerns this thread alone.
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
