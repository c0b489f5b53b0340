// SPDX-License-Identifier: MIT

//! Runs the procedures of `docs/operations.md` as written, on servers with configuration files. At the end of each, all servers
//! stop and start again: the changed roles and data must be in their files.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::programs::{Printed, Run};
use crate::support::server::module;
use crate::support::{root, show, until, Client, Flavor};

crate::on_every_server!(
    an_upgrade_loses_no_lock,
    an_upgrade_under_sentinel_loses_no_lock,
    an_upgrade_of_a_cluster_loses_no_lock,
    an_upgrade_of_one_server_keeps_holds,
    a_restart_without_aof_forgets_locks,
    a_drain_ends_with_a_restart,
    a_backup_is_restored,
    a_replica_joins_and_leaves,
);

/// The first of nine free ports whose cluster bus ports, ten thousand higher, are free as well.
pub(crate) fn free_ports() -> u16 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut seed = now.subsec_nanos() ^ std::process::id().rotate_left(16);
    loop {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let first = 12_000 + u16::try_from((seed >> 8) % 8_000).unwrap();
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (first..first + 9).all(|port| is_free(port) && is_free(port + 10_000)) {
            return first;
        }
    }
}

/// A machine of the page, whose server or Sentinel has a configuration file.
struct Host {
    name: &'static str,
    flavor: Flavor,
    dir: tempfile::TempDir,
    port: u16,
    is_sentinel: bool,
    child: Option<Child>,
}

impl Host {
    /// Starts the hosts `a`, `b` and so on, which do not replicate yet.
    fn start_all<const N: usize>(flavor: Flavor) -> [Host; N] {
        Host::start_all_with(flavor, "")
    }

    /// Starts the hosts as [`start_all`](Host::start_all) does, with more lines in their configuration files.
    fn start_all_with<const N: usize>(flavor: Flavor, more: &str) -> [Host; N] {
        let port = free_ports();
        std::array::from_fn(|nth| {
            let host = Host::new(flavor, ["a", "b", "c"][nth], port + u16::try_from(nth).unwrap());
            let shown = host.dir.path().display();
            let module = format!("loadmodule {shown}/redis-lock.so\n");
            host.started_with(&format!("appendonly yes\nrepl-diskless-sync-delay 0\n{module}{more}"))
        })
    }

    fn sentinel(flavor: Flavor, port: u16, primary: u16) -> Host {
        let mut host = Host::new(flavor, "sentinel", port);
        host.is_sentinel = true;
        let down = "sentinel down-after-milliseconds locks 60000";
        host.started_with(&format!("sentinel monitor locks 127.0.0.1 {primary} 1\n{down}\n"))
    }

    fn new(flavor: Flavor, name: &'static str, port: u16) -> Host {
        Host { name, flavor, dir: tempfile::tempdir().unwrap(), port, is_sentinel: false, child: None }
    }

    fn started_with(mut self, config: &str) -> Host {
        let (dir, port) = (self.dir.path().display(), self.port);
        let common = format!("port {port}\nbind 127.0.0.1\ndir {dir}\nlogfile {dir}/log\n");
        fs::write(self.dir.path().join("server.conf"), common + config).unwrap();
        self.start();
        self
    }

    /// Installs the module, and starts the server with it.
    fn start(&mut self) {
        let new = self.dir.path().join("new.so");
        fs::copy(module(), &new).unwrap();
        fs::rename(&new, self.dir.path().join("redis-lock.so")).unwrap();
        let mut command = Command::new(self.flavor.program());
        command.arg(self.dir.path().join("server.conf")).args(self.is_sentinel.then_some("--sentinel"));
        self.child = Some(command.spawn().unwrap());
        until("the server responds", || {
            Client::try_connect(self.port)
                .and_then(|mut client| {
                    client.try_send("PING")?;
                    client.try_recv()
                })
                .is_ok_and(|reply| show(&reply) == "PONG")
        });
    }

    /// Acts like `systemctl stop`. A server refuses to stop while it writes its first AOF, so the signal is repeated.
    fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        until("the server has ended", || {
            // SAFETY: the process is a child of this one and not reaped yet.
            child.try_wait().unwrap().is_some() || unsafe { libc::kill(pid, libc::SIGTERM) } != 0
        });
    }

    fn client(&self) -> Client {
        Client::connect(self.port)
    }

    fn follow(&self, primary: &Host) {
        assert_eq!(self.client().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port)), "OK");
        assert_eq!(self.client().call("CONFIG REWRITE"), "OK");
        self.until_in_sync();
    }

    fn until_in_sync(&self) {
        until("the replica is in sync", || self.client().info("replication", "master_link_status") == "up");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Stops all servers, the primary first, and starts them again. Then the named host must be the only primary.
fn restart_all(hosts: &mut [Host], primary: &str) {
    hosts.sort_by_key(|host| host.name != primary);
    hosts.iter_mut().for_each(Host::stop);
    hosts.iter_mut().for_each(Host::start);
    for host in hosts.iter() {
        let role = if host.name == primary { "master" } else { "slave" };
        assert_eq!(host.client().info("replication", "role"), role, "{}", host.name);
        if role == "slave" {
            host.until_in_sync();
            let reply = host.client().call("LOCK.ACQUIRE new dave");
            assert!(reply.starts_with("READONLY") || reply.starts_with("MOVED"), "{}: {reply}", host.name);
        }
    }
    hosts.sort_by_key(|host| host.name);
}

/// Runs a transcript of the page in a shell whose redis-cli and ssh know the hosts. The Sentinel runs on the host `a`. The
/// shell's folder is that of the last host.
fn follow_the_page(session: &str, hosts: &mut [Host], sentinel: Option<&Host>) {
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let (_, session) = page.split_once(&format!("<!-- session: {session} -->\n```\n")).unwrap();
    let (session, _) = session.split_once("```").unwrap();
    let home = hosts.last().unwrap().dir.path().to_owned();
    let cases: String = hosts
        .iter()
        .map(|host| format!("{}) port={} dir={} ;; ", host.name, host.port, host.dir.path().display()))
        .collect();
    let sentinel = sentinel.map_or(0, |sentinel| sentinel.port);
    // The user that runs the tests owns all files, so `sudo` is left out.
    let shell = format!(
        "host() {{ case $1 in {cases} esac; }}
        redis-cli() {{
            host $2; shift 2
            [ \"$1\" != -p ] || {{ shift 2; port={sentinel}; }}
            command redis-cli -p $port \"$@\"
        }}
        ssh() {{
            host $1; shift
            paths=\"s|/etc/redis/redis.conf|$dir/server.conf|; s|/var/lib/redis|$dir|\"
            bash -c \"$(sed \"s|sudo -u redis ||; s|sudo ||; $paths\" <<<\"$*\")\"
        }}"
    );
    let steps: Vec<&str> = session.split("$ ").skip(1).collect();
    assert!(steps.len() > 1, "{session}");
    for step in steps {
        let (typed, printed) = step.split_once('\n').unwrap();
        println!("$ {typed}");
        if let Some((what, host)) = typed.strip_suffix(" redis-server").and_then(|typed| {
            let (host, what) = typed.strip_prefix("ssh ")?.split_once(" sudo systemctl ")?;
            Some((what, hosts.iter_mut().find(|known| known.name == host)?))
        }) {
            if what != "start" {
                host.stop();
            }
            if what != "stop" {
                host.start();
            }
            continue;
        }
        let mut typed = typed.replace("sleep 1", "sleep 0.05");
        for host in hosts.iter() {
            typed = typed.replace(&format!(" {} 6379", host.name), &format!(" 127.0.0.1 {}", host.port));
        }
        let mut command = Command::new("bash");
        command.args(["-c", &format!("{shell}\n{typed}")]).current_dir(&home);
        let output = Run::spawn(command).finish();
        let shown = Printed::new(&output);
        assert!(output.status.success(), "{typed}: {shown}");
        assert_eq!(shown.stdout.trim_end(), printed.trim_end(), "{typed}: {shown}");
    }
}

fn token(client: &mut Client, key: &str) -> i64 {
    let info = client.call(&format!("LOCK.INFO {key}"));
    info.split_once("token, ").unwrap().1.split(',').next().unwrap().parse().unwrap()
}

/// Acquires the locks that a procedure must keep. Returns the token of one.
fn acquire_locks(primary: &mut Client) -> i64 {
    // A slow machine may need more than the default of 20 s for a procedure.
    assert_eq!(primary.call("CONFIG SET lock.request-ttl 600000"), "OK");
    assert_eq!(primary.call("LOCK.ACQUIRE k alice PX 600000"), "1");
    assert!(primary.call("LOCK.ACQUIRE fenced alice PX 600000 FENCE").contains("token"));
    assert_eq!(primary.call("LOCK.ACQUIRE retried alice PX 600000 ID 1"), "1");
    token(primary, "fenced")
}

fn assert_locks_remain(primary: &mut Client, before: i64) {
    assert!(primary.call("LOCK.INFO k").contains("alice"));
    assert_eq!(token(primary, "fenced"), before);
    assert_eq!(primary.call("LOCK.ACQUIRE retried alice PX 600000 ID 1"), "1");
    assert_eq!(primary.call("LOCK.ACQUIRE k dave"), "nil");
}

fn an_upgrade_loses_no_lock(flavor: Flavor) {
    let mut hosts: [Host; 2] = Host::start_all(flavor);
    // The replication is not configured in a file.
    assert_eq!(hosts[1].client().call(&format!("REPLICAOF 127.0.0.1 {}", hosts[0].port)), "OK");
    upgrade(&mut hosts, "upgrade", None);
}

fn an_upgrade_under_sentinel_loses_no_lock(flavor: Flavor) {
    let mut hosts: [Host; 2] = Host::start_all(flavor);
    hosts[1].follow(&hosts[0]);
    let sentinel = Host::sentinel(flavor, hosts[0].port + 2, hosts[0].port);
    let mut client = sentinel.client();
    until("Sentinel knows the replica", || client.call("SENTINEL MASTER locks").contains("num-slaves, 1"));
    upgrade(&mut hosts, "sentinel upgrade", Some(&sentinel));
    assert!(client.call("SENTINEL GET-MASTER-ADDR-BY-NAME locks").contains(&hosts[1].port.to_string()));
}

/// `a` has all slots but one, and `c` the last: the election needs the votes of both.
fn an_upgrade_of_a_cluster_loses_no_lock(flavor: Flavor) {
    let mut hosts: [Host; 3] = Host::start_all_with(flavor, "cluster-enabled yes\n");
    let [mut a, mut b, mut c] = [0, 1, 2].map(|nth: usize| hosts[nth].client());
    assert_eq!(a.call("CLUSTER ADDSLOTSRANGE 0 16382"), "OK");
    assert_eq!(c.call("CLUSTER ADDSLOTS 16383"), "OK");
    for (nth, client) in [&mut a, &mut b, &mut c].into_iter().enumerate() {
        assert_eq!(client.call(&format!("CLUSTER SET-CONFIG-EPOCH {}", nth + 1)), "OK");
    }
    for host in &hosts[1..] {
        assert_eq!(a.call(&format!("CLUSTER MEET 127.0.0.1 {}", host.port)), "OK");
    }
    let replicate = format!("CLUSTER REPLICATE {}", a.call("CLUSTER MYID"));
    until("the node is a replica", || b.call(&replicate) == "OK");
    hosts[1].until_in_sync();
    for client in [&mut a, &mut b, &mut c] {
        until("the node knows the roles", || {
            client.call("CLUSTER INFO").contains("cluster_state:ok")
                && client.call("CLUSTER NODES").contains("slave")
        });
    }
    upgrade(&mut hosts, "cluster upgrade", None);
    assert!(c.call("CLUSTER NODES").contains(&format!(":{}@", hosts[1].port)));
}

/// Upgrades `a` and then its replica `b` as the page says. Locks, tokens and remembered requests must remain.
fn upgrade(hosts: &mut [Host], session: &str, sentinel: Option<&Host>) {
    let mut primary = hosts[0].client();
    let before = acquire_locks(&mut primary);
    let mut holder = hosts[0].client();
    assert_eq!(holder.call("LOCK.ACQUIRE bound erin PX 600000 WATCHDOG EPHEMERAL"), "1");
    let mut waiter = hosts[0].client();
    waiter.send("LOCK.ACQUIRE k bob BLOCK 0");
    until("bob waits", || primary.info("lock", "lock_waiters") == "1");
    follow_the_page(session, hosts, sentinel);
    // Sentinel closes the connections of a demoted server.
    assert!(
        waiter.try_recv().map_or(sentinel.is_some(), |reply| show(&reply).starts_with("UNBLOCKED")),
        "the wait ends"
    );
    let mut primary = hosts[1].client();
    assert_locks_remain(&mut primary, before);
    assert_bound_again(&mut primary);
    let mut bob = hosts[1].client();
    bob.send("LOCK.ACQUIRE k bob BLOCK 0 PX 600000");
    until("bob waits", || primary.info("lock", "lock_waiters") == "1");
    assert_eq!(primary.call("LOCK.RELEASE k alice"), "0");
    assert_eq!(bob.recv(), "1");
    assert_eq!(primary.call("LOCK.RELEASE fenced alice"), "0");
    assert!(primary.call("LOCK.ACQUIRE fenced carol FENCE").contains("token"));
    assert!(token(&mut primary, "fenced") > before);
    restart_all(&mut hosts[..2], "b");
    until("the primary serves its locks", || hosts[1].client().call("LOCK.INFO k").contains("bob"));
}

/// Erin's hold with a watchdog has lost its connection. `LOCK.RENEW` binds it again.
fn assert_bound_again(primary: &mut Client) {
    assert!(primary.call("LOCK.INFO bound").contains("erin"));
    let bindings = |client: &mut Client| {
        ["lock_watchdogs", "lock_ephemeral_holds"].map(|field| client.info("lock", field))
    };
    assert_eq!(bindings(primary), ["0", "0"]);
    assert_eq!(primary.call("LOCK.RENEW bound erin PX 600000 WATCHDOG EPHEMERAL"), "1");
    assert_eq!(bindings(primary), ["1", "1"]);
}

fn an_upgrade_of_one_server_keeps_holds(flavor: Flavor) {
    let mut hosts: [Host; 1] = Host::start_all(flavor);
    let mut server = hosts[0].client();
    let before = acquire_locks(&mut server);
    assert_eq!(server.call("LOCK.ACQUIRE bound erin PX 600000 WATCHDOG EPHEMERAL"), "1");
    let ends = ["k", "fenced", "retried"].map(|key| server.call(&format!("PEXPIRETIME {key}")));
    let mut waiter = hosts[0].client();
    waiter.send("LOCK.ACQUIRE k bob BLOCK 0");
    until("bob waits", || server.info("lock", "lock_waiters") == "1");
    // Only the first value is saved.
    assert_eq!(server.call("CONFIG SET lock.max-waiters 7"), "OK");
    assert_eq!(server.call("CONFIG REWRITE"), "OK");
    assert_eq!(server.call("CONFIG SET lock.max-waiters-total 7"), "OK");
    follow_the_page("upgrade one server", &mut hosts, None);
    assert!(waiter.try_recv().is_err(), "the wait has ended");
    let mut server = hosts[0].client();
    assert_eq!(server.call("CONFIG GET lock.max-waiters"), "[lock.max-waiters, 7]");
    assert_eq!(server.call("CONFIG GET lock.max-waiters-total"), "[lock.max-waiters-total, 0]");
    assert_locks_remain(&mut server, before);
    assert_eq!(ends, ["k", "fenced", "retried"].map(|key| server.call(&format!("PEXPIRETIME {key}"))));
    assert_bound_again(&mut server);
    // The order of the queue is that of the new calls.
    let mut waiters = ["carol", "bob"].map(|owner| {
        let mut waiter = hosts[0].client();
        waiter.send(&format!("LOCK.ACQUIRE k {owner} BLOCK 0"));
        until("the client waits", || server.call("LOCK.WAITERS k").contains(owner));
        waiter
    });
    assert_eq!(server.call("LOCK.RELEASE k alice"), "0");
    assert_eq!(waiters[0].recv(), "1");
    assert!(waiters[1].has_nothing());
    // The quarantine after a restart depends on the AOF.
    assert_eq!(server.call("CONFIG SET lock.quarantine 60000"), "OK");
    for (fsync, reply) in [("everysec", "QUARANTINE"), ("always", "1")] {
        assert_eq!(server.call(&format!("CONFIG SET appendfsync {fsync}")), "OK");
        assert_eq!(server.call("CONFIG REWRITE"), "OK");
        hosts[0].stop();
        hosts[0].start();
        server = hosts[0].client();
        let granted = server.call(&format!("LOCK.ACQUIRE {fsync} dave"));
        assert_eq!(granted.split(' ').next(), Some(reply), "{fsync}");
    }
}

fn a_restart_without_aof_forgets_locks(flavor: Flavor) {
    let mut hosts: [Host; 1] = Host::start_all(flavor);
    let mut server = hosts[0].client();
    assert_eq!(server.call("CONFIG SET appendonly no"), "OK");
    assert_eq!(server.call_args(&[b"CONFIG", b"SET", b"save", b""]), "OK");
    assert_eq!(server.call("CONFIG REWRITE"), "OK");
    let before = acquire_locks(&mut server);
    assert_eq!(server.call("SAVE"), "OK");
    assert_eq!(server.call("LOCK.ACQUIRE late bob PX 600000"), "1");
    hosts[0].stop();
    hosts[0].start();
    let mut server = hosts[0].client();
    assert_locks_remain(&mut server, before);
    assert_eq!(server.call("LOCK.ACQUIRE late carol"), "1");
}

/// Settings are not replicated, so a drain of the primary alone ends with a failover.
fn a_drain_ends_with_a_restart(flavor: Flavor) {
    let mut hosts: [Host; 2] = Host::start_all(flavor);
    hosts[1].follow(&hosts[0]);
    let mut primary = hosts[0].client();
    let before = acquire_locks(&mut primary);
    for host in &hosts {
        assert_eq!(host.client().call("CONFIG SET lock.quarantine 1000000000000"), "OK");
    }
    let refused = |client: &mut Client| client.call("LOCK.ACQUIRE stock bob").starts_with("QUARANTINE");
    assert!(refused(&mut primary));
    let failover = format!("FAILOVER TO 127.0.0.1 {}", hosts[1].port);
    until("the failover begins", || primary.call(&failover) == "OK");
    let mut promoted = hosts[1].client();
    until("the replica is the primary", || promoted.call("ROLE").starts_with("[master"));
    assert!(refused(&mut promoted), "the promoted replica grants during a drain");
    assert_eq!(promoted.call("LOCK.RENEW k alice PX 600000"), "1");
    // The roles are not in the files, so both start with their earlier ones.
    until("the old primary follows", || hosts[0].client().call("ROLE").starts_with("[slave"));
    hosts[0].until_in_sync();
    restart_all(&mut hosts, "a");
    let mut primary = hosts[0].client();
    assert_locks_remain(&mut primary, before);
    assert_eq!(primary.call("LOCK.ACQUIRE stock bob"), "1");
}

fn a_backup_is_restored(flavor: Flavor) {
    let mut hosts: [Host; 2] = Host::start_all(flavor);
    hosts[1].follow(&hosts[0]);
    let mut primary = hosts[0].client();
    let before = acquire_locks(&mut primary);
    follow_the_page("backup", &mut hosts, None);
    assert_eq!(primary.call("LOCK.ACQUIRE late carol PX 60000"), "1");
    follow_the_page("restore", &mut hosts, None);
    let mut primary = hosts[0].client();
    assert_locks_remain(&mut primary, before);
    // This grant is not in the backup, so its owner may still hold it.
    assert!(primary.call("LOCK.ACQUIRE late bob").starts_with("QUARANTINE"));
    assert_eq!(primary.call("CONFIG SET lock.quarantine 0"), "OK");
    assert_eq!(primary.call("CONFIG REWRITE"), "OK");
    assert_eq!(primary.call("LOCK.RELEASE fenced alice"), "0");
    assert!(primary.call("LOCK.ACQUIRE fenced bob PX 600000 FENCE").contains("token"));
    let after = token(&mut primary, "fenced");
    assert!(after > before);
    restart_all(&mut hosts, "a");
    assert_locks_remain(&mut hosts[0].client(), after);
}

fn a_replica_joins_and_leaves(flavor: Flavor) {
    let mut hosts: [Host; 3] = Host::start_all(flavor);
    hosts[1].follow(&hosts[0]);
    let mut primary = hosts[0].client();
    let before = acquire_locks(&mut primary);
    assert_eq!(hosts[2].client().call("LOCK.ACQUIRE own carol"), "1");
    follow_the_page("add a replica", &mut hosts, None);
    assert_eq!(hosts[2].client().call("EXISTS own"), "0");
    until("the primary sends to both", || {
        primary.call("LOCK.ACQUIRE on:both bob REPLICAS 2 WITHIN 10000") == "1"
    });
    restart_all(&mut hosts, "a");
    let mut primary = hosts[0].client();
    assert_locks_remain(&mut primary, before);
    follow_the_page("remove a replica", &mut hosts, None);
    assert_eq!(primary.call("LOCK.ACQUIRE on:one bob REPLICAS 1 WITHIN 10000"), "1");
    restart_all(&mut hosts[..2], "a");
    let mut primary = hosts[0].client();
    assert_locks_remain(&mut primary, before);
    assert_eq!(primary.info("replication", "connected_slaves"), "1");
}
