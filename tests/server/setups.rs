// SPDX-License-Identifier: MIT

//! Tests the set-ups of `docs/setups`, and the upgrade that `docs/operations.md` describes.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::programs::{tool, Printed, Run};
use crate::support::server::module;
use crate::support::{show, until, Client, Flavor, Server};

crate::on_every_server!(
    sentinels_promote_a_replica,
    the_cluster_keeps_locks_without_a_node,
    setups_leave_other_servers_alone,
    an_upgrade_loses_no_lock,
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

/// The first of six free ports whose cluster bus ports, ten thousand higher, are free as well.
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
    let mut new = set_up.client(new.unwrap());
    assert!(new.call("LOCK.INFO held").contains("alice"));
    until("the new primary has a replica and grants locks", || new.call("LOCK.ACQUIRE other bob") == "1");
    assert_eq!(set_up.lockrun(&locked), "locked\n");
    assert!(Run::spawn(set_up.command("stop")).finish().status.success());
    until("all six have ended", || {
        (0..6).all(|nth| TcpListener::bind(("127.0.0.1", set_up.port + nth)).is_ok())
    });
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
    assert_eq!(first.call("LOCK.ACQUIRE b alice PX 600000 REPLICAS 1 WITHIN 10000"), "1");
    let _ = first.try_send("SHUTDOWN NOSAVE FORCE");
    let mut second = set_up.client(1);
    let replica = (3..6).find(|nth| {
        let role = set_up.client(*nth).call("ROLE");
        role.contains(&format!("127.0.0.1, {},", set_up.port))
    });
    let mut replica = set_up.client(replica.expect("a replica of the first node"));
    until("its replica takes over", || replica.call("ROLE").starts_with("[master"));
    until("the cluster is healthy", || second.call("CLUSTER INFO").contains("cluster_state:ok"));
    assert!(replica.call("LOCK.INFO b").contains("alice"));
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

/// A machine whose server has a configuration file, as described on the operations page.
struct Host {
    flavor: Flavor,
    dir: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Host {
    fn start(flavor: Flavor, port: u16) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let shown = dir.path().display();
        let mut config =
            format!("port {port}\nbind 127.0.0.1\ndir {shown}\nlogfile {shown}/log\nappendonly yes\n");
        config.push_str(&format!("repl-diskless-sync-delay 0\nloadmodule {shown}/redis-lock.so\n"));
        fs::write(dir.path().join("server.conf"), config).unwrap();
        let child = Host::spawn(flavor, dir.path());
        let host = Host { flavor, dir, port, child };
        host.until_it_answers();
        host
    }

    /// Installs the module, and starts the server with it.
    fn spawn(flavor: Flavor, dir: &Path) -> Child {
        let new = dir.join("new.so");
        fs::copy(module(), &new).unwrap();
        fs::rename(&new, dir.join("redis-lock.so")).unwrap();
        Command::new(flavor.program()).arg(dir.join("server.conf")).spawn().unwrap()
    }

    fn client(&self) -> Client {
        Client::connect(self.port)
    }

    fn until_it_answers(&self) {
        until("the server responds", || {
            Client::try_connect(self.port)
                .and_then(|mut client| {
                    client.try_send("PING")?;
                    client.try_recv()
                })
                .is_ok_and(|reply| show(&reply) == "PONG")
        });
    }

    /// Acts like `systemctl restart`. A server refuses to stop while it writes its first AOF, so the signal is repeated.
    fn restart(&mut self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        until("the server has ended", || {
            // SAFETY: the process is a child of this one and not reaped yet.
            self.child.try_wait().unwrap().is_some() || unsafe { libc::kill(pid, libc::SIGTERM) } != 0
        });
        self.child = Host::spawn(self.flavor, self.dir.path());
        self.until_it_answers();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the page's upgrade transcript in a shell that knows both hosts.
fn follow_the_upgrade(a: &mut Host, b: &mut Host) {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md")).unwrap();
    let (_, session) = page.split_once("<!-- session: upgrade -->\n```\n").unwrap();
    let (session, _) = session.split_once("```").unwrap();
    let steps = session.split("$ ").skip(1);
    assert!(steps.clone().count() > 4, "{session}");
    for step in steps {
        let (typed, printed) = step.split_once('\n').unwrap();
        match typed {
            "ssh a sudo systemctl restart redis-server" => a.restart(),
            "ssh b sudo systemctl restart redis-server" => b.restart(),
            _ => {
                let ports = format!("case $2 in a) port={} ;; b) port={} ;; esac", a.port, b.port);
                let cli = format!("redis-cli() {{ {ports}; shift 2; command redis-cli -p $port \"$@\"; }}");
                let typed = typed
                    .replace("sleep 1", "sleep 0.05")
                    .replace("TO b 6379", &format!("TO 127.0.0.1 {}", b.port));
                let mut shell = Command::new("bash");
                shell.args(["-c", &format!("{cli}\n{typed}")]);
                let output = Run::spawn(shell).finish();
                let shown = Printed::new(&output);
                assert_eq!(shown.stdout.trim_end(), printed.trim_end(), "{typed}: {shown}");
            }
        }
    }
}

fn an_upgrade_loses_no_lock(flavor: Flavor) {
    let first = six_free_ports();
    let [mut a, mut b] = [first, first + 1].map(|port| Host::start(flavor, port));
    // The replication is not configured in a file.
    assert_eq!(b.client().call(&format!("REPLICAOF 127.0.0.1 {}", a.port)), "OK");
    let mut primary = a.client();
    assert_eq!(primary.call("LOCK.ACQUIRE k alice PX 600000"), "1");
    assert!(primary.call("LOCK.ACQUIRE fenced alice PX 600000 FENCE").contains("token"));
    let info = |client: &mut Client| client.call("LOCK.INFO fenced");
    let token = |info: &str| info.split_once("token, ").unwrap().1.split(',').next().unwrap().to_owned();
    let before = token(&info(&mut primary));
    assert_eq!(primary.call("LOCK.ACQUIRE retried alice PX 600000 ID 1"), "1");
    let mut waiter = a.client();
    waiter.send("LOCK.ACQUIRE k bob BLOCK 0");
    until("bob waits", || primary.info("lock", "lock_waiters") == "1");
    follow_the_upgrade(&mut a, &mut b);
    assert!(waiter.recv().starts_with("UNBLOCKED"), "the wait ends");
    let mut primary = b.client();
    assert!(primary.call("LOCK.INFO k").contains("alice"));
    assert_eq!(token(&info(&mut primary)), before);
    assert_eq!(primary.call("LOCK.ACQUIRE retried alice PX 600000 ID 1"), "1");
    let mut bob = b.client();
    bob.send("LOCK.ACQUIRE k bob BLOCK 0");
    until("bob waits", || primary.info("lock", "lock_waiters") == "1");
    assert_eq!(primary.call("LOCK.RELEASE k alice"), "0");
    assert_eq!(bob.recv(), "1");
    assert_eq!(primary.call("LOCK.RELEASE fenced alice"), "0");
    let next: i64 = {
        assert!(primary.call("LOCK.ACQUIRE fenced carol FENCE").contains("token"));
        token(&info(&mut primary)).parse().unwrap()
    };
    assert!(next > before.parse().unwrap());
    // After further restarts, one server is still the primary.
    a.restart();
    b.restart();
    let role = |host: &Host| host.client().info("replication", "role");
    assert_eq!([role(&a), role(&b)], ["slave", "master"]);
    until("the replica is in sync", || a.client().info("replication", "master_link_status") == "up");
    assert!(b.client().call("LOCK.ACQUIRE k dave").starts_with("nil"), "bob holds the lock");
    assert!(a.client().call("LOCK.ACQUIRE k dave").starts_with("READONLY"));
}
