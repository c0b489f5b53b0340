// SPDX-License-Identifier: MIT

//! A primary with replicas that sentinels monitor: real failovers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use super::{until, Flavor, Server};
use crate::client::{Client, PATIENCE};

/// The name of the primary in the configuration of the sentinels.
pub const NAME: &str = "locks";

/// Time without a reply from the primary, in milliseconds, after which a sentinel begins a failover that a test requests.
const NOTICES: u32 = 1000;
/// Time without a reply from the primary, in milliseconds, that no test reaches. So no sentinel begins a failover by itself.
const NEVER: u32 = 3_600_000;

/// Servers with the module, and their sentinels.
pub struct Watched {
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
    module_args: Vec<String>,
}

impl Watched {
    /// Starts one primary, two replicas and three sentinels. Only the first sentinel begins failovers, with the vote of another,
    /// and only in [`fail_over`](Self::fail_over). On a busy machine, the other sentinels might begin a second failover, which
    /// loses acknowledged writes.
    pub fn start(flavor: Flavor) -> Watched {
        Watched::start_with(flavor, &[])
    }

    /// Starts servers and sentinels, and passes arguments to the module.
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

    /// Starts another replica. Waits until it is in sync and the sentinels, which poll every ten seconds, know it.
    pub fn add_replica(&mut self) {
        let port = self.primary_port().to_string();
        let args: Vec<&str> = self.module_args.iter().map(String::as_str).collect();
        self.servers.push(replica(self.servers[0].flavor, &args, &port));
        let mut client = self.client();
        let number = self.servers.len() - 1;
        until("all replicas are online", || {
            client.call("INFO replication").matches("state=online").count() == number
        });
        let found = format!(":{}", self.servers[number].port);
        for sentinel in &self.sentinels {
            let mut client = sentinel.client();
            until("the sentinels know the replica", || {
                client.call(&format!("SENTINEL REPLICAS {NAME}")).contains(&found)
            });
        }
    }

    /// Returns the address of the primary.
    pub fn primary_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.primary_port()).into()
    }

    /// Returns the addresses of the sentinels, in the form that Redisson takes.
    pub fn addresses(&self) -> String {
        let address = |sentinel: &Server| sentinel.url();
        self.sentinels.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// Connects to the primary as clients do: asks a sentinel for its address and the server for its role, until both agree.
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

    /// Kills the primary. Waits until the sentinels have promoted one replica, and the other replica follows it.
    pub fn fail_over(&mut self) {
        let port = self.primary_port();
        let at = self.servers.iter().position(|server| server.port == port).unwrap();
        self.notices_after(NOTICES);
        drop(self.servers.remove(at));
        until("another server is the primary", || self.primary_port() != port && self.try_client().is_some());
        // A sentinel that has not finished the failover may still end connections.
        let primary = self.primary_port();
        for sentinel in &self.sentinels {
            let mut client = sentinel.client();
            until("the sentinels agree", || {
                let state = client.call(&format!("SENTINEL MASTER {NAME}"));
                state.contains(&format!("port, {primary},")) && state.contains("flags, master,")
            });
        }
        self.notices_after(NEVER);
        // Redisson waits until a replica acknowledges its writes.
        let mut client = self.client();
        until("the other replica follows", || client.call("INFO replication").contains("state=online"));
    }

    /// Sets how many milliseconds of silence the first sentinel tolerates before it considers the primary dead.
    fn notices_after(&self, milliseconds: u32) {
        let set = format!("SENTINEL SET {NAME} down-after-milliseconds {milliseconds}");
        assert_eq!(self.sentinels[0].client().call(&set), "OK");
    }

    fn primary_port(&self) -> u16 {
        let mut sentinel = self.sentinels[0].client();
        let address = sentinel.call(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {NAME}"));
        address.trim_matches(['[', ']']).split_once(", ").unwrap().1.parse().unwrap()
    }

    /// Panics unless all remaining servers are healthy.
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
