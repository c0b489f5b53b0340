// SPDX-License-Identifier: MIT

//! A primary with replicas, watched by sentinels: real failovers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use super::client::{Client, PATIENCE};
use super::server::{until, Flavor, Server};

/// What the sentinels call the primary.
pub const NAME: &str = "locks";

/// Milliseconds of silence after which a sentinel begins a failover that is wanted, and one that is not.
const NOTICES: u32 = 1000;
const NEVER: u32 = 3_600_000;

/// Each server has the module.
pub struct Watched {
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
    module_args: Vec<String>,
}

impl Watched {
    /// One primary, two replicas, and three sentinels. Only the first of them begins failovers, with the vote of another,
    /// and only in [`fail_over`](Self::fail_over): among processes that get no processor time, others may begin a second
    /// failover of their own, in which writes that were acknowledged are lost.
    pub fn start(flavor: Flavor) -> Watched {
        Watched::start_with(flavor, &[])
    }

    /// Starts them with arguments for the module.
    pub fn start_with(flavor: Flavor, module_args: &[&str]) -> Watched {
        let primary = Server::with_module_args(flavor, module_args, &[]);
        let port = primary.port.to_string();
        let mut servers = vec![primary];
        for _ in 0..2 {
            servers.push(replica(flavor, module_args, &port));
        }
        for replica in &servers[1..] {
            let mut client = replica.client();
            until("a replica is in sync", || client.info("replication", "master_link_status") == "up");
        }
        let sentinels: Vec<Server> = (0..3).map(|_| sentinel(flavor, &port)).collect();
        for sentinel in &sentinels {
            let mut client = sentinel.client();
            until("the sentinels know each other and the replicas", || {
                let state = client.call(&format!("SENTINEL MASTER {NAME}"));
                ["num-slaves, 2", "num-other-sentinels, 2"].iter().all(|field| state.contains(field))
            });
        }
        Watched { servers, sentinels, module_args: module_args.iter().map(|arg| (*arg).to_owned()).collect() }
    }

    /// Starts one more, and waits until it is in sync, and the sentinels know it: they ask every ten seconds.
    pub fn add_replica(&mut self) {
        let port = self.primary_port().to_string();
        let args: Vec<&str> = self.module_args.iter().map(String::as_str).collect();
        self.servers.push(replica(self.servers[0].flavor, &args, &port));
        let mut client = self.client();
        let number = self.servers.len() - 1;
        until("all follow", || client.call("INFO replication").matches("state=online").count() == number);
        let found = format!(":{}", self.servers[number].port);
        for sentinel in &self.sentinels {
            let mut client = sentinel.client();
            until("the sentinels know it", || {
                client.call(&format!("SENTINEL REPLICAS {NAME}")).contains(&found)
            });
        }
    }

    /// Where the primary is.
    pub fn primary_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.primary_port()).into()
    }

    /// Where the sentinels are, as Redisson wants to be told.
    pub fn addresses(&self) -> String {
        let address = |sentinel: &Server| sentinel.url();
        self.sentinels.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// A connection to the primary, as a client gets one: it asks a sentinel who that is, and then the primary
    /// whether it is one, until both agree.
    pub fn client(&self) -> Client {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(client) = self.try_client() {
                return client;
            }
            assert!(Instant::now() < deadline, "there is no primary");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn try_client(&self) -> Option<Client> {
        let mut sentinel = Client::try_connect(self.sentinels[0].port).ok()?;
        let address = sentinel.call(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {NAME}"));
        let port = address.trim_matches(['[', ']']).split_once(", ")?.1.parse().ok()?;
        let mut client = Client::try_connect(port).ok()?;
        client.call("ROLE").starts_with("[master").then_some(client)
    }

    /// Kills the primary, and waits until the sentinels have made another server the primary, which the other replica
    /// follows.
    pub fn fail_over(&mut self) {
        let port = self.primary_port();
        let at = self.servers.iter().position(|server| server.port == port).unwrap();
        self.notices_after(NOTICES);
        drop(self.servers.remove(at));
        until("another server is the primary", || self.primary_port() != port && self.try_client().is_some());
        // As long as one of them is not done with it, it may still end connections.
        let primary = self.primary_port();
        for sentinel in &self.sentinels {
            let mut client = sentinel.client();
            until("the sentinels agree", || {
                let state = client.call(&format!("SENTINEL MASTER {NAME}"));
                state.contains(&format!("port, {primary},")) && state.contains("flags, master,")
            });
        }
        self.notices_after(NEVER);
        // Redisson wants each of its changes acknowledged by a replica.
        let mut client = self.client();
        until("the other replica follows", || client.call("INFO replication").contains("state=online"));
    }

    /// After how many milliseconds of silence the first sentinel takes the primary for dead.
    fn notices_after(&self, milliseconds: u32) {
        let set = format!("SENTINEL SET {NAME} down-after-milliseconds {milliseconds}");
        assert_eq!(self.sentinels[0].client().call(&set), "OK");
    }

    fn primary_port(&self) -> u16 {
        let mut sentinel = self.sentinels[0].client();
        let address = sentinel.call(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {NAME}"));
        address.trim_matches(['[', ']']).split_once(", ").unwrap().1.parse().unwrap()
    }

    /// Those servers that are left.
    pub fn assert_healthy(&mut self) {
        self.servers.iter_mut().for_each(Server::assert_healthy);
    }
}

fn replica(flavor: Flavor, module_args: &[&str], port: &str) -> Server {
    Server::with_module_args(flavor, module_args, &["--replicaof", "127.0.0.1", port])
}

fn sentinel(flavor: Flavor, port: &str) -> Server {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sentinel.conf");
    let text = format!(
        "sentinel monitor {NAME} 127.0.0.1 {port} 1\n\
         sentinel down-after-milliseconds {NAME} {NEVER}\n\
         sentinel failover-timeout {NAME} 4000\n"
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap().to_owned();
    Server::start_in(flavor, dir, &[&file, "--sentinel"])
}
