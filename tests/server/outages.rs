// SPDX-License-Identifier: MIT

//! The network between a client and its server fails for some seconds. The kernel resends unacknowledged data afterwards,
//! even on a connection that the client has closed. A late renewal would bind the hold to that closed connection and so end
//! it, while its holder still trusts it. A package must prevent this.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::driver::{Driver, Package};
use crate::support::network::Network;
use crate::support::{until, Flavor};

mod a_renewed_hold_outlives_an_outage {
    use super::{play, Package};

    #[test]
    fn long_python() {
        play(Package::Python);
    }

    #[test]
    fn long_rust() {
        play(Package::Rust);
    }

    #[test]
    fn long_go() {
        play(Package::Go);
    }

    #[test]
    fn long_node_ioredis() {
        play(Package::NodeIoredis);
    }

    #[test]
    fn long_node_redis() {
        play(Package::NodeRedis);
    }

    #[test]
    fn long_java_lettuce() {
        play(Package::JavaLettuce);
    }

    #[test]
    fn long_java_jedis() {
        play(Package::JavaJedis);
    }
}

fn play(package: Package) {
    if !package.is_built() {
        return;
    }
    let Some(network) = Network::enter() else { return };
    let server = network.server(0, Flavor::Redis7, &[], &[]);
    let mut driver = Driver::start(package, &server.url());
    let acquire = driver.ask(json!({"do": "acquire", "as": "h", "lock": "a"}));
    assert_eq!(driver.answer(acquire)["is"], "granted");
    // Another client waits on the server's own machine, which has no outage.
    let mut other = Command::new("nsenter");
    other.args(["--target", &server.pid().to_string(), "--net", "redis-cli", "-p", &server.port.to_string()]);
    other.args(["LOCK.ACQUIRE", "a", "other", "PX", "60000", "BLOCK", "0"]).stdout(Stdio::null());
    let mut other = other.spawn().unwrap();
    // The first renewal, after a third of the lease, meets the outage. Its connection is closed after five seconds without a
    // reply.
    thread::sleep(Duration::from_millis(4500));
    network.cut_clients_off(0);
    thread::sleep(Duration::from_millis(6800));
    network.reconnect_clients(0);
    // The hold must be bound again by now, and all late data has arrived.
    for _ in 0..60 {
        thread::sleep(Duration::from_millis(200));
        let state = driver.ask(json!({"do": "state", "as": "h"}));
        assert_ne!(driver.answer(state)["is"], "lost");
        assert!(other.try_wait().unwrap().is_none(), "two owners hold the lock");
    }
    let release = driver.ask(json!({"do": "release", "as": "h"}));
    assert_eq!(driver.answer(release)["is"], "released");
    until("the other client holds the lock", || other.try_wait().unwrap().is_some());
    let close = driver.ask(json!({"do": "close"}));
    driver.answer(close);
    driver.finish();
}
