// SPDX-License-Identifier: MIT

//! The Rust package with Sentinel, in a cluster, and over TLS. Most tests use the interface for threads: both interfaces share
//! all code but that of connections.

use std::thread;
use std::time::Duration;

use redis::{Client, ClientTlsConfig, TlsCertificates};
use redis_lock_client::blocking::{Hold, Locks};
use redis_lock_client::{ErrorKind, Server as Place, Settings};
use rustls::crypto::ring;

use crate::support::cluster::Cluster;
use crate::support::sentinel::{Watched, NAME};
use crate::support::tls::Certificates;
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    locks_follow_the_primary,
    tasks_follow_the_primary,
    locks_find_the_cluster_nodes,
    tasks_find_the_cluster_nodes,
    holds_and_waits_move_with_their_slot,
    holds_follow_a_replica_that_takes_over,
    holds_survive_a_fail_back,
    moved_acquires_need_no_undo,
    locks_use_tls,
);

/// Upper bound for every wait in these tests.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Reply of `LOCK.INFO` for a free lock.
const FREE: &str = "nil";

fn client(url: impl AsRef<str>) -> Client {
    Client::open(url.as_ref()).unwrap()
}

fn assert_held(hold: &Hold, info: &str) {
    assert!(!hold.is_lost() && info.contains(&*String::from_utf8_lossy(hold.owner())), "{hold:?} of {info}");
}

fn primary_of(watched: &Watched, user: &str) -> Place {
    let sentinels: Vec<Client> = watched.addresses().split(',').map(client).collect();
    Place::sentinel(sentinels, NAME, client(format!("redis://{user}127.0.0.1")))
}

fn locks_follow_the_primary(flavor: Flavor) {
    let mut watched = Watched::start(flavor);
    let place = primary_of(&watched, "");
    let primary = place.primary().unwrap().get_connection_info().addr().to_string();
    assert_eq!(primary, watched.primary_address().to_string());
    let locks = Locks::new(place);
    let hold = locks.lock("k").acquire().unwrap();
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("k").wait(MAX_WAIT).acquire().unwrap());
        let is_waiting = |watched: &Watched| watched.client().call("LOCK.INFO k").contains("waiters, 1");
        until("it waits", || is_waiting(&watched));
        watched.fail_over();
        until("it waits at the new primary", || is_waiting(&watched));
        until("the hold is safe at the new primary", || !hold.valid_for().is_zero());
        assert_held(&hold, &watched.client().call("LOCK.INFO k"));
        hold.release().unwrap();
        let next = wait.join().unwrap();
        assert_held(&next, &watched.client().call("LOCK.INFO k"));
        next.release().unwrap();
    });
    locks.close();
    assert_eq!(watched.client().call("LOCK.INFO k"), FREE);
    // A silent Sentinel delays a caller for a limited time. The search for the primary needs no permission there.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = client(format!("redis://{}", silent.local_addr().unwrap()));
    let user = "ACL SETUSER few on >secret ~k -@all +lock.session +lock.events +lock.acquire +lock.release";
    assert_eq!(watched.client().call(user), "OK");
    let sentinels = [silent, client(watched.sentinels[0].url())];
    let locks = Locks::new(Place::sentinel(sentinels, NAME, client("redis://few:secret@127.0.0.1")));
    locks.lock("k").wait(MAX_WAIT).acquire().unwrap().release().unwrap();
    locks.close();
    watched.assert_healthy();
    // A name that no Sentinel knows, and an address without a Sentinel.
    for (address, name, word) in
        [(watched.sentinels[0].url(), "other", "knows"), ("redis://127.0.0.1:1".to_owned(), NAME, "refused")]
    {
        let place = Place::sentinel([client(address)], name, client("redis://127.0.0.1"));
        let settings = Settings::new().patience(Duration::from_millis(500));
        let locks = Locks::with_settings(place, settings).unwrap();
        let error = locks.lock("k").try_acquire().unwrap_err();
        assert!(error.kind() == ErrorKind::Unavailable && error.is_unsent(), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.is_unknown_primary(), word == "knows", "{error}");
    }
    // A Sentinel that does not reply may know the name.
    let absent = client("redis://127.0.0.1:1");
    let place =
        Place::sentinel([absent, client(watched.sentinels[0].url())], "other", client("redis://127.0.0.1"));
    let error = place.primary().unwrap_err();
    assert!(!error.is_unknown_primary() && error.to_string().contains("refused"), "{error}");
}

fn in_runtime(work: impl std::future::Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(work);
}

fn tasks_follow_the_primary(flavor: Flavor) {
    let mut watched = Watched::start(flavor);
    in_runtime(async {
        let locks = redis_lock_client::Locks::new(primary_of(&watched, ""));
        let hold = locks.lock("k").acquire().await.unwrap();
        tokio::task::block_in_place(|| {
            watched.fail_over();
            until("the hold is safe at the new primary", || !hold.valid_for().is_zero());
        });
        hold.release().await.unwrap();
        locks.lock("k").acquire().await.unwrap().release().await.unwrap();
        locks.close().await;
    });
    assert_eq!(watched.client().call("LOCK.INFO k"), FREE);
    watched.assert_healthy();
}

fn in_cluster(cluster: &Cluster, node: usize) -> Locks {
    Locks::new(Place::cluster([client(cluster.nodes[node].url())]))
}

fn waiting(cluster: &Cluster, node: usize) -> String {
    cluster.nodes[node].client().info("lock", "lock_waiters")
}

fn locks_find_the_cluster_nodes(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let locks = in_cluster(&cluster, 0);
    // `b` and `c` belong to the first node, `a` and `d` to the second.
    let holds: Vec<Hold> = ["a", "b", "c", "d"].map(|key| locks.lock(key).acquire().unwrap()).into();
    for (key, node, hold) in [("a", 1, 0), ("b", 0, 1), ("c", 0, 2), ("d", 1, 3)] {
        assert_held(&holds[hold], &cluster.nodes[node].client().call(&format!("LOCK.INFO {key}")));
    }
    thread::scope(|scope| {
        let locks = &locks;
        let busy = scope.spawn(|| locks.lock("a").try_acquire().unwrap().is_none());
        assert!(busy.join().unwrap());
        let waits =
            ["a", "b", "c", "d"].map(|key| scope.spawn(move || locks.lock(key).wait(MAX_WAIT).acquire()));
        until("both nodes have two waiters", || (0..2).all(|node| waiting(&cluster, node) == "2"));
        for hold in &holds {
            let key = format!("{{{}}}:x", String::from_utf8_lossy(hold.key()));
            let _: String = hold.guard(redis::cmd("SET").arg(key).arg(1)).unwrap();
            hold.extend(None).unwrap();
            hold.release().unwrap();
        }
        for wait in waits {
            wait.join().unwrap().unwrap().release().unwrap();
        }
    });
    locks.close();
    // A silent node, and one that has left the cluster, are skipped.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = client(format!("redis://{}", silent.local_addr().unwrap()));
    let alone = Server::with_module(flavor, &["--cluster-enabled", "yes"]);
    let locks = Locks::new(Place::cluster([silent, client(alone.url()), client(cluster.nodes[0].url())]));
    locks.lock("a").wait(MAX_WAIT).acquire().unwrap().release().unwrap();
    locks.close();
    // Without cluster support, `MOVED` is an error.
    let locks = Locks::new(client(cluster.nodes[0].url()));
    let error = locks.lock("a").wait(MAX_WAIT).acquire().unwrap_err();
    assert_eq!(error.code(), Some("MOVED"), "{error}");
    locks.close();
    for key in ["a", "b", "c", "d"] {
        let node = usize::from(matches!(key, "a" | "d"));
        assert_eq!(cluster.nodes[node].client().call(&format!("LOCK.INFO {key}")), FREE);
    }
    cluster.assert_healthy();
}

fn tasks_find_the_cluster_nodes(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    in_runtime(async {
        let locks = redis_lock_client::Locks::new(Place::cluster([client(cluster.nodes[0].url())]));
        for key in ["a", "b"] {
            let hold = locks.lock(key).acquire().await.unwrap();
            assert!(locks.lock(key).owner("other").try_acquire().await.unwrap().is_none());
            hold.release().await.unwrap();
        }
        let several = locks.lock_all(["{a}1", "{a}2"]).fence().acquire().await.unwrap();
        assert_eq!(several.tokens().len(), 2);
        several.release().await.unwrap();
        locks.close().await;
    });
    cluster.assert_healthy();
}

fn holds_and_waits_move_with_their_slot(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let (locks, late) = (in_cluster(&cluster, 0), in_cluster(&cluster, 0));
    assert!(late.lock("b").query().unwrap().is_none());
    let [hold, leased] =
        [locks.lock("b"), locks.lock("{b}2").lease(MAX_WAIT)].map(|lock| lock.acquire().unwrap());
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("b").wait(MAX_WAIT).acquire().unwrap().release().unwrap());
        until("it waits", || waiting(&cluster, 0) == "1");
        cluster.migrate_all("b", 0, 1);
        until("it waits at the new node", || waiting(&cluster, 1) == "1");
        until("the hold is safe at the new node", || !hold.valid_for().is_zero());
        assert_held(&hold, &cluster.nodes[1].client().call("LOCK.INFO b"));
        assert!(cluster.nodes[1].client().call("LOCK.INFO b").contains("ephemeral, 1"));
        // These locks have made no call since the move.
        assert!(late.lock("b").query().unwrap().is_some());
        hold.release().unwrap();
        leased.release().unwrap();
        wait.join().unwrap();
    });
    // A dropped hold whose slot moves is released, too.
    let dropped = locks.lock("c").acquire().unwrap();
    cluster.migrate_all("c", 0, 1);
    drop(dropped);
    let mut node = cluster.nodes[1].client();
    until("the dropped hold is released", || node.call("LOCK.INFO c") == FREE);
    locks.close();
    for key in ["b", "{b}2", "c"] {
        assert_eq!(node.call(&format!("LOCK.INFO {key}")), FREE);
    }
    cluster.assert_healthy();
}

fn holds_follow_a_replica_that_takes_over(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let locks = in_cluster(&cluster, 1);
    let hold = locks.lock("b").acquire().unwrap();
    let other = locks.lock("a").acquire().unwrap();
    let replica = cluster.replica_of(0, &[]);
    thread::scope(|scope| {
        let wait = scope.spawn(|| locks.lock("b").acquire().unwrap().release().unwrap());
        until("it waits", || waiting(&cluster, 0) == "1");
        let mut taking = replica.client();
        assert_eq!(taking.call("CLUSTER FAILOVER"), "OK");
        until("the replica has taken over", || taking.info("replication", "role") == "master");
        until("the hold is safe at the new node", || taking.call("LOCK.INFO b").contains("ephemeral, 1"));
        until("it waits at the new node", || taking.info("lock", "lock_waiters") == "1");
        until("the hold is safe", || !hold.valid_for().is_zero());
        hold.release().unwrap();
        wait.join().unwrap();
    });
    other.release().unwrap();
    locks.close();
}

fn holds_survive_a_fail_back(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    // Some servers need seconds until all nodes agree.
    let ttl = Duration::from_secs(6);
    let settings = Settings::new().ttl(ttl).grace(Duration::from_millis(600));
    let place = Place::cluster([client(cluster.nodes[1].url())]);
    let locks = Locks::with_settings(place, settings).unwrap();
    let replica = cluster.replica_of(0, &[]);
    let port = replica.url().rsplit_once(':').unwrap().1.to_owned();
    until("the node knows the replica", || cluster.nodes[1].client().call("CLUSTER SLOTS").contains(&port));
    let hold = locks.lock("b").acquire().unwrap();
    for (node, is_first) in [(&replica, true), (&cluster.nodes[0], false)] {
        let mut taking = node.client();
        until("it is a replica that can take over", || {
            taking.info("replication", "role") == "slave"
                && taking.info("replication", "master_link_status") == "up"
        });
        assert_eq!(taking.call("CLUSTER FAILOVER"), "OK");
        until("the replica has taken over", || taking.info("replication", "role") == "master");
        until("the hold is declared there", || taking.call("LOCK.INFO b").contains("ephemeral, 1"));
        until("the hold is safe", || !hold.valid_for().is_zero());
        // The session on the first node was confirmed longer ago than this.
        thread::sleep(if is_first { ttl + Duration::from_secs(1) } else { Duration::ZERO });
    }
    assert!(!hold.is_lost(), "{:?}", hold.end_reason());
    hold.release().unwrap();
    locks.close();
}

fn moved_acquires_need_no_undo(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let locks = in_cluster(&cluster, 0);
    locks.lock("c").acquire().unwrap().release().unwrap();
    cluster.migrate_all("b", 0, 1);
    locks.lock("b").acquire().unwrap().release().unwrap();
    locks.close();
    for node in &cluster.nodes {
        assert!(!node.client().call("INFO commandstats").to_lowercase().contains("lock.cancel"));
    }
    cluster.assert_healthy();
}

fn locks_use_tls(flavor: Flavor) {
    // Fails only if a provider is already installed.
    let _ = ring::default_provider().install_default();
    let certificates = Certificates::sign();
    let server = Server::with_module(flavor, &[]);
    let port = certificates.serve(&server);
    let mut a = server.client();
    let url = format!("rediss://localhost:{port}");
    let open = |is_trusted: bool, is_known: bool| {
        let root_cert = is_trusted.then(|| certificates.read("ca.crt"));
        let client_tls = is_known.then(|| ClientTlsConfig {
            client_cert: certificates.read("client.crt"),
            client_key: certificates.read("client.key"),
        });
        Client::build_with_tls(&*url, TlsCertificates { client_tls, root_cert }).unwrap()
    };
    let locks = Locks::new(open(true, true));
    let first = locks.lock("k").acquire().unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| locks.lock("k").wait(MAX_WAIT).acquire().unwrap().release().unwrap()))
            .collect();
        until("they wait", || a.info("lock", "lock_waiters") == "20");
        // The data is too long for a single read or write, in both directions.
        let text = "x".repeat(1 << 20);
        let _: String = first.guard(redis::cmd("SET").arg("big").arg(&text)).unwrap();
        let back: String = first.guard(redis::cmd("GET").arg("big")).unwrap();
        assert!(back == text);
        first.release().unwrap();
        for wait in waits {
            wait.join().unwrap();
        }
    });
    locks.close();
    in_runtime(async {
        let locks = redis_lock_client::Locks::new(open(true, true));
        locks.lock("k").acquire().await.unwrap().release().await.unwrap();
        locks.close().await;
    });
    assert_eq!(a.call("LOCK.INFO k"), FREE);
    // The system's certificate authorities do not include ours.
    for client in [open(false, true), open(true, false), client(&url)] {
        let settings = Settings::new().patience(Duration::from_millis(500));
        let locks = Locks::with_settings(client, settings).unwrap();
        let error = locks.lock("k").try_acquire().unwrap_err();
        assert!(
            error.kind() == ErrorKind::Unavailable && error.to_string().contains("ertificate"),
            "{error}"
        );
    }
    assert_eq!(a.call("CONFIG SET tls-port 0"), "OK");
}
