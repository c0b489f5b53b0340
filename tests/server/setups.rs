// SPDX-License-Identifier: MIT

//! Tests the set-ups of `docs/setups`.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use crate::procedures::free_ports;
use crate::support::programs::{tool, Printed, Run};
use crate::support::server::module;
use crate::support::{root, until, Client, Flavor, Server};

crate::on_every_server!(
    sentinels_promote_a_replica,
    the_cluster_keeps_locks_without_a_node,
    setups_survive_kill_9,
    an_interrupted_start_can_be_repeated,
    setups_leave_other_servers_alone,
);

/// A running set-up of `docs/setups`, which is stopped when dropped.
struct SetUp {
    script: &'static str,
    flavor: Flavor,
    dir: tempfile::TempDir,
    port: u16,
}

impl SetUp {
    fn start(flavor: Flavor, script: &'static str) -> SetUp {
        let set_up = SetUp { script, flavor, dir: tempfile::tempdir().unwrap(), port: free_ports() };
        set_up.start_again();
        set_up
    }

    /// Starts all servers that do not run. Returns the output.
    fn start_again(&self) -> String {
        self.run("start")
    }

    fn run(&self, what: &str) -> String {
        let output = Run::spawn(self.command(what)).finish();
        let printed = Printed::new(&output);
        assert!(output.status.success(), "{what}: {printed}");
        printed.stdout
    }

    /// The number of servers. Each has the next port.
    fn servers(&self) -> u16 {
        if self.script == "cluster.sh" {
            9
        } else {
            6
        }
    }

    /// Ends the nth server with SIGKILL.
    fn kill(&self, nth: u16) {
        let pid =
            fs::read_to_string(self.dir.path().join((self.port + nth).to_string()).join("pid")).unwrap();
        // SAFETY: the process is a server that this set-up has started.
        unsafe { libc::kill(pid.trim().parse().unwrap(), libc::SIGKILL) };
        self.until_free(nth);
    }

    fn until_free(&self, nth: u16) {
        until("a server has ended", || TcpListener::bind(("127.0.0.1", self.port + nth)).is_ok());
    }

    fn command(&self, what: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg(root().join("docs/setups").join(self.script)).arg(what);
        command.env("SERVER", self.flavor.program()).env("MODULE", module()).env("DIR", self.dir.path());
        command.env("PORT", self.port.to_string());
        command
    }

    fn client(&self, nth: u16) -> Client {
        Client::connect(self.port + nth)
    }

    /// The primaries of a cluster, as `status` shows them: their numbers and flags, in this order.
    fn primaries(&self) -> Vec<String> {
        let status = self.run("status");
        let primary = |line: &str| {
            let mut words = line.split(' ').skip(1);
            let (address, flags) = (words.next().unwrap(), words.next().unwrap());
            let port: u16 = address.split_once(':').unwrap().1.split('@').next().unwrap().parse().unwrap();
            format!("{} {}", port - self.port, flags.trim_start_matches("myself,"))
        };
        let mut primaries: Vec<String> = status.lines().map(primary).collect();
        primaries.sort();
        primaries
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

fn sentinels_promote_a_replica(flavor: Flavor) {
    let set_up = SetUp::start(flavor, "sentinel.sh");
    let url = format!("redis://127.0.0.1:{}", set_up.port + 3);
    let locked = ["-u", &url, "--sentinel", "locks", "order:42", "echo", "locked"];
    let mut primary = set_up.client(0);
    assert_eq!(primary.call("LOCK.ACQUIRE at:once alice"), "1", "the new set-up grants no locks");
    assert_eq!(set_up.lockrun(&locked), "locked\n");
    assert_eq!(primary.call("LOCK.ACQUIRE held alice PX 600000 REPLICAS 2 WITHIN 10000"), "1");
    let _ = primary.try_send("SHUTDOWN NOSAVE FORCE");
    let mut sentinel = set_up.client(3);
    let mut new = None;
    until("a replica is the primary", || {
        let address = sentinel.call("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
        new = (1..3).find(|nth| address.contains(&(set_up.port + nth).to_string()));
        new.is_some_and(|nth| set_up.client(nth).call("ROLE").starts_with("[master"))
    });
    let number = new.unwrap();
    let mut new = set_up.client(number);
    assert!(new.call("LOCK.INFO held").contains("alice"));
    until("the new primary has a replica and grants locks", || new.call("LOCK.ACQUIRE other bob") == "1");
    assert_eq!(set_up.lockrun(&locked), "locked\n");
    // The scripts name the new primary, also if the first Sentinel is down.
    let name = format!("primary: 127.0.0.1 {}", set_up.port + number);
    set_up.kill(3);
    // The other Sentinels may learn of the failover later.
    until("the next Sentinel names the primary", || set_up.run("status").trim_end() == name);
    let started = set_up.start_again();
    assert!(started.starts_with(&name), "{started}");
    assert!(set_up.client(0).call("ROLE").starts_with("[slave"), "the old primary is a replica");
    set_up.run("stop");
    (0..6).for_each(|nth| set_up.until_free(nth));
}

fn the_cluster_keeps_locks_without_a_node(flavor: Flavor) {
    let set_up = SetUp::start(flavor, "cluster.sh");
    let url = format!("redis://127.0.0.1:{}", set_up.port);
    // Keys in slots of the first, second and third node.
    for (nth, key) in ["b", "c", "a"].into_iter().enumerate() {
        let node = u16::try_from(nth).unwrap();
        assert_eq!(set_up.client(node).call(&format!("LOCK.ACQUIRE {{{key}}}:at:once alice")), "1", "{key}");
        let locked = ["-u", &url, "--cluster", key, "echo", "locked"];
        assert_eq!(set_up.lockrun(&locked), "locked\n", "{key}");
    }
    let mut first = set_up.client(0);
    assert_eq!(first.call("LOCK.ACQUIRE b alice PX 600000 REPLICAS 2 WITHIN 10000"), "1");
    let replicas: Vec<u16> = (3..9)
        .filter(|nth| set_up.client(*nth).call("ROLE").contains(&format!("127.0.0.1, {},", set_up.port)))
        .collect();
    assert_eq!(replicas.len(), 2);
    // Each part grants again after any one node is lost: a primary, or later a replica of another part.
    let mut second = set_up.client(1);
    assert_eq!(set_up.primaries(), ["0 master", "1 master", "2 master"]);
    set_up.kill(0);
    let mut new = None;
    until("a replica takes over", || {
        new = replicas.iter().copied().find(|nth| set_up.client(*nth).call("ROLE").starts_with("[master"));
        new.is_some()
    });
    let number = new.unwrap();
    let mut new = set_up.client(number);
    until("the cluster is healthy", || second.call("CLUSTER INFO").contains("cluster_state:ok"));
    assert!(new.call("LOCK.INFO b").contains("alice"));
    until("the new primary has a replica and grants locks", || new.call("LOCK.ACQUIRE {b}:2 bob") == "1");
    let all = ["0 master,fail", "1 master", "2 master", &format!("{number} master")];
    assert_eq!(set_up.primaries(), all);
    set_up.start_again();
    assert!(set_up.client(0).call("ROLE").starts_with("[slave"), "the old primary is a replica");
    until("no node takes the old primary for a primary", || set_up.primaries() == all[1..]);
    let lost = (3..9)
        .find(|nth| set_up.client(*nth).call("ROLE").contains(&format!("127.0.0.1, {},", set_up.port + 1)));
    set_up.kill(lost.unwrap());
    until("the primary notices", || second.info("replication", "min_slaves_good_slaves") == "1");
    assert_eq!(second.call("LOCK.ACQUIRE {c}:2 bob"), "1");
    set_up.run("stop");
    (0..9).for_each(|nth| set_up.until_free(nth));
    let status = Run::spawn(set_up.command("status")).finish();
    assert_eq!(status.status.code(), Some(1));
    assert_eq!(Printed::new(&status).stderr, "no node is running\n");
}

/// Each server's AOF has every grant that a client has seen.
fn setups_survive_kill_9(flavor: Flavor) {
    for script in ["sentinel.sh", "cluster.sh"] {
        let set_up = SetUp::start(flavor, script);
        assert_eq!(set_up.client(0).call("LOCK.ACQUIRE b alice PX 600000 REPLICAS 2 WITHIN 10000"), "1");
        (0..set_up.servers()).for_each(|nth| set_up.kill(nth));
        set_up.start_again();
        let mut client = set_up.client(0);
        if client.call("ROLE").starts_with("[master") {
            assert_eq!(client.call("LOCK.ACQUIRE b alice"), "2", "{script}");
            assert_eq!(client.call("LOCK.ACQUIRE b bob"), "nil", "{script}");
        } else {
            assert!(client.call("HGETALL b").contains("alice"), "{script}");
        }
    }
}

/// The script ends with SIGKILL at a moment when it has started some servers and has not created the cluster yet.
fn an_interrupted_start_can_be_repeated(flavor: Flavor) {
    for script in ["sentinel.sh", "cluster.sh"] {
        let set_up = SetUp { script, flavor, dir: tempfile::tempdir().unwrap(), port: free_ports() };
        let mut start = set_up.command("start").spawn().unwrap();
        let third = set_up.dir.path().join((set_up.port + 2).to_string()).join("server.conf");
        until("the third server starts", || third.exists());
        start.kill().unwrap();
        start.wait().unwrap();
        if script == "cluster.sh" {
            // Slots that an interrupted creation of the cluster has assigned.
            until("the first node responds", || Client::try_connect(set_up.port).is_ok());
            assert_eq!(set_up.client(0).call("CLUSTER ADDSLOTS 1 2 3"), "OK");
        }
        set_up.start_again();
        assert_eq!(set_up.client(0).call("LOCK.ACQUIRE b alice"), "1", "{script}");
    }
}

fn setups_leave_other_servers_alone(flavor: Flavor) {
    for script in ["sentinel.sh", "cluster.sh"] {
        let mut foreign = Server::start(flavor, &[]);
        let mut client = foreign.client();
        assert_eq!(client.call("SET its data"), "OK");
        let set_up = SetUp { script, flavor, dir: tempfile::tempdir().unwrap(), port: foreign.port - 2 };
        let run = |what: &str| Run::spawn(set_up.command(what)).finish();
        let refused = run("start");
        assert!(!refused.status.success(), "{script} starts beside another server");
        assert!(Printed::new(&refused).stderr.contains("is in use by another program"), "{script}");
        assert_eq!(
            fs::read_dir(set_up.dir.path()).unwrap().count(),
            0,
            "{script} has started a server before its report"
        );
        // A stale pid file of an earlier start, whose number now belongs to that server.
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
        assert!(stale.exists(), "files of a running process were deleted");
    }
}
