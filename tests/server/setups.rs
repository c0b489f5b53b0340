// SPDX-License-Identifier: MIT

//! The set-ups of `docs/setups`, and what `docs/operations.md` says of an upgrade.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::programs::{tool, Printed, Run};
use crate::support::server::module;
use crate::support::{until, Client, Flavor, Server};

crate::on_every_server!(
    the_sentinels_find_a_new_primary,
    the_cluster_keeps_locks_when_a_node_is_gone,
    set_ups_leave_foreign_servers_alone,
    an_upgrade_of_a_running_pair_loses_no_lock,
);

/// A set-up of `docs/setups` that runs; gone with its test.
struct SetUp {
    script: &'static str,
    flavor: Flavor,
    dir: tempfile::TempDir,
    port: u16,
}

impl SetUp {
    fn start(flavor: Flavor, script: &'static str) -> SetUp {
        let set_up = SetUp { script, flavor, dir: tempfile::tempdir().unwrap(), port: six_free_ports() };
        let output = Run::spawn(set_up.command("start")).finish();
        assert!(output.status.success(), "{}", Printed::new(&output));
        set_up
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/setups").join(self.script)).arg(what);
        command.env("SERVER", self.flavor.program()).env("MODULE", module()).env("DIR", self.dir.path());
        command.env("PORT", self.port.to_string());
        command
    }

    fn client(&self, nth: u16) -> Client {
        Client::connect(self.port + nth)
    }

    fn lockrun(&self, arguments: &[&str]) -> String {
        let mut command = tool("lockrun");
        command.args(arguments);
        let output = Run::spawn(command).finish();
        assert!(output.status.success(), "{}", Printed::new(&output));
        Printed::new(&output).stdout
    }
}

impl Drop for SetUp {
    fn drop(&mut self) {
        let _ = self.command("stop").status();
    }
}

/// The first of six ports that nobody has, nor the ones on which nodes of a cluster talk, which are ten thousand higher.
fn six_free_ports() -> u16 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut seed = now.subsec_nanos() ^ std::process::id().rotate_left(16);
    loop {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let first = 12_000 + u16::try_from((seed >> 8) % 8_000).unwrap();
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (first..first + 6).all(|port| is_free(port) && is_free(port + 10_000)) {
            return first;
        }
    }
}

fn the_sentinels_find_a_new_primary(flavor: Flavor) {
    let set_up = SetUp::start(flavor, "sentinel.sh");
    let url = format!("redis://127.0.0.1:{}", set_up.port + 3);
    let locked = ["-u", &url, "--sentinel", "locks", "order:42", "echo", "locked"];
    let mut primary = set_up.client(0);
    assert_eq!(primary.call("LOCK.ACQUIRE at:once alice"), "1", "what has started grants locks");
    assert_eq!(set_up.lockrun(&locked), "locked\n");
    assert_eq!(primary.call("LOCK.ACQUIRE held alice PX 600000 REPLICAS 2 WITHIN 10000"), "1");
    let _ = primary.try_send("SHUTDOWN NOSAVE FORCE");
    let mut sentinel = set_up.client(3);
    let mut new = None;
    until("another one is the primary", || {
        let told = sentinel.call("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
        new = (1..3).find(|nth| told.contains(&(set_up.port + nth).to_string()));
        new.is_some_and(|nth| set_up.client(nth).call("ROLE").starts_with("[master"))
    });
    let mut new = set_up.client(new.unwrap());
    assert!(new.call("LOCK.INFO held").contains("alice"));
    until("it has a replica, and locks", || new.call("LOCK.ACQUIRE other bob") == "1");
    assert_eq!(set_up.lockrun(&locked), "locked\n");
    assert!(Run::spawn(set_up.command("stop")).finish().status.success());
    until("all six have ended", || {
        (0..6).all(|nth| TcpListener::bind(("127.0.0.1", set_up.port + nth)).is_ok())
    });
}

fn the_cluster_keeps_locks_when_a_node_is_gone(flavor: Flavor) {
    let set_up = SetUp::start(flavor, "cluster.sh");
    let url = format!("redis://127.0.0.1:{}", set_up.port);
    // Slots of the first, second and third node.
    for (nth, key) in ["b", "c", "a"].into_iter().enumerate() {
        let node = u16::try_from(nth).unwrap();
        assert_eq!(set_up.client(node).call(&format!("LOCK.ACQUIRE {{{key}}}:at:once alice")), "1", "{key}");
        let locked = ["-u", &url, "--cluster", key, "echo", "locked"];
        assert_eq!(set_up.lockrun(&locked), "locked\n", "{key}");
    }
    let mut first = set_up.client(0);
    assert_eq!(first.call("LOCK.ACQUIRE b alice PX 600000 REPLICAS 1 WITHIN 10000"), "1");
    let _ = first.try_send("SHUTDOWN NOSAVE FORCE");
    let mut second = set_up.client(1);
    let replica = (3..6).find(|nth| {
        let role = set_up.client(*nth).call("ROLE");
        role.contains(&format!("127.0.0.1, {},", set_up.port))
    });
    let mut replica = set_up.client(replica.expect("a replica of the first node"));
    until("its replica takes over", || replica.call("ROLE").starts_with("[master"));
    until("the cluster is well", || second.call("CLUSTER INFO").contains("cluster_state:ok"));
    assert!(replica.call("LOCK.INFO b").contains("alice"));
}

fn set_ups_leave_foreign_servers_alone(flavor: Flavor) {
    for script in ["sentinel.sh", "cluster.sh"] {
        let mut foreign = Server::start(flavor, &[]);
        let mut client = foreign.client();
        assert_eq!(client.call("SET its data"), "OK");
        let set_up = SetUp { script, flavor, dir: tempfile::tempdir().unwrap(), port: foreign.port - 2 };
        let run = |what: &str| Run::spawn(set_up.command(what)).finish();
        let refused = run("start");
        assert!(!refused.status.success(), "{script} starts beside another server");
        assert!(Printed::new(&refused).stderr.contains("is in use by another program"), "{script}");
        // A pid file of an earlier start, whose number is that server's by now.
        let stale = set_up.dir.path().join(foreign.port.to_string());
        for with_stale_files in [false, true] {
            if with_stale_files {
                fs::create_dir_all(&stale).unwrap();
                fs::write(stale.join("pid"), format!("{}\n", foreign.pid())).unwrap();
                fs::write(stale.join("server.conf"), "").unwrap();
            }
            for what in ["stop", "clean"] {
                run(what);
                foreign.assert_healthy();
                assert_eq!(client.call("GET its"), "data", "{script} {what}");
            }
        }
        assert!(stale.exists(), "the files of a process that runs are kept");
    }
}

fn an_upgrade_of_a_running_pair_loses_no_lock(flavor: Flavor) {
    // What is installed is the same module under another name.
    let newer = tempfile::tempdir().unwrap();
    let newer = newer.path().join("redis-lock.so");
    std::fs::copy(module(), &newer).unwrap();
    let newer = ["--loadmodule", newer.to_str().unwrap()];
    let primary = Server::with_module(flavor, &[]);
    let replica_of = |server: &Server, program: &[&str]| {
        let port = server.port.to_string();
        let replica = Server::start(flavor, &[program, &["--replicaof", "127.0.0.1", &port]].concat());
        let mut client = replica.client();
        until("the replica is in sync", || client.info("replication", "master_link_status") == "up");
        replica
    };
    let old_replica = replica_of(&primary, &["--loadmodule", module().to_str().unwrap()]);
    let mut a = primary.client();
    assert_eq!(a.call("LOCK.ACQUIRE k alice PX 600000"), "1");
    assert!(a.call("LOCK.ACQUIRE fenced alice PX 600000 FENCE").contains("token"));
    let info = |client: &mut Client| client.call("LOCK.INFO fenced");
    let token = |info: &str| info.split_once("token, ").unwrap().1.split(',').next().unwrap().to_owned();
    let before = token(&info(&mut a));
    assert_eq!(a.call("LOCK.ACQUIRE retried alice PX 600000 ID 1"), "1");
    let mut waiter = primary.waiting("LOCK.ACQUIRE k bob BLOCK 0");
    // Steps 2 to 4 of the page.
    drop(old_replica);
    let new_primary = replica_of(&primary, &newer);
    let known = format!("port={},state=online", new_primary.port);
    until("the primary knows the replica", || a.call("INFO replication").contains(&known));
    assert_eq!(a.call(&format!("FAILOVER TO 127.0.0.1 {}", new_primary.port)), "OK");
    assert!(waiter.recv().starts_with("UNBLOCKED"), "the wait ends");
    let mut b = new_primary.client();
    until("the roles are swapped", || b.call("ROLE").starts_with("[master"));
    drop(a);
    drop(primary);
    let replica = replica_of(&new_primary, &newer);
    assert!(b.call("LOCK.INFO k").contains("alice"));
    assert_eq!(token(&info(&mut b)), before);
    assert_eq!(b.call("LOCK.ACQUIRE retried alice PX 600000 ID 1"), "1");
    let mut bob = new_primary.waiting("LOCK.ACQUIRE k bob BLOCK 0");
    assert_eq!(b.call("LOCK.RELEASE k alice"), "0");
    assert_eq!(bob.recv(), "1");
    assert_eq!(b.call("LOCK.RELEASE fenced alice"), "0");
    let next: i64 = {
        assert!(b.call("LOCK.ACQUIRE fenced carol FENCE").contains("token"));
        token(&info(&mut b)).parse().unwrap()
    };
    assert!(next > before.parse().unwrap());
    drop(replica);
}
