// SPDX-License-Identifier: MIT

//! The Rust package with Sentinel, in a cluster, and over TLS.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use redis_lock_client::{Hold, Locks, Server as Place, Settings};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::support::cluster::Cluster;
use crate::support::sentinel::{Watched, NAME};
use crate::support::tls::Certificates;
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    locks_follow_the_primary,
    locks_find_the_cluster_nodes,
    holds_and_waits_move_with_their_slot,
    a_dead_node_is_not_asked_again,
    locks_use_tls,
);

const LONG: Duration = Duration::from_secs(30);

/// Upper bound for every wait in these tests.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Reply of `LOCK.INFO` for a free lock.
const FREE: &str = "nil";

fn held_by(hold: &Hold, info: &str) {
    assert!(!hold.is_lost() && info.contains(hold.owner()), "{} of {info}", hold.owner());
}

fn locks_follow_the_primary(flavor: Flavor) {
    let mut watched = Watched::start(flavor);
    let addresses = watched.addresses();
    let place = Place::sentinel(addresses.split(','), NAME, "redis://127.0.0.1").unwrap();
    assert_eq!(place.find(LONG).unwrap().addr().to_string(), watched.primary_address().to_string());
    let troubles = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&troubles);
    let settings = Settings::new().on_trouble(move |error| log.lock().unwrap().push(error.clone()));
    let locks = Locks::at(place, settings);
    let hold = locks.lock("k").lease(LONG).keep(true).acquire().unwrap();
    thread::scope(|scope| {
        let patient = || locks.lock("k").wait(MAX_WAIT);
        let waits = [patient(), patient().blocking()];
        let waits = waits.map(|lock| scope.spawn(move || lock.acquire().unwrap()));
        let waiting = |watched: &Watched, count| {
            watched.client().call("LOCK.INFO k").contains(&format!("waiters, {count}"))
        };
        until("they wait", || waiting(&watched, 2));
        watched.fail_over();
        until("they wait at the new primary", || waiting(&watched, 2));
        assert!(troubles.lock().unwrap().iter().all(|error| error.kind() == "unavailable"));
        assert!(!troubles.lock().unwrap().is_empty());
        held_by(&hold, &watched.client().call("LOCK.INFO k"));
        // After the renewal, the hold ends with a connection of this process again.
        until("the hold is renewed by the new primary", || {
            watched.client().call("LOCK.INFO k").contains("ephemeral, 1")
        });
        hold.release().unwrap();
        for wait in waits {
            scope.spawn(|| {
                let next = wait.join().unwrap();
                held_by(&next, &watched.client().call("LOCK.INFO k"));
                next.release().unwrap();
            });
        }
    });
    locks.close();
    assert_eq!(watched.client().call("LOCK.INFO k"), FREE);
    // A silent Sentinel delays a caller only for a limited time. The check for a primary needs no extra permission.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://{}", silent.local_addr().unwrap());
    let user = "ACL SETUSER few on >secret ~k &lock:inbox:* -@all \
                +subscribe +lock.acquire +lock.release +lock.renew +lock.cancel";
    assert_eq!(watched.client().call(user), "OK");
    let place = Place::sentinel([silent, watched.sentinels[0].url()], NAME, "redis://few:secret@127.0.0.1");
    let locks = Locks::at(place.unwrap(), Settings::new().patience(Duration::from_millis(700)));
    let hold = locks.lock("k").wait(MAX_WAIT).lease(LONG).keep(true).acquire().unwrap();
    hold.extend(LONG).unwrap();
    hold.release().unwrap();
    locks.close();
    watched.assert_healthy();
    // A name unknown to every Sentinel, and an address without a Sentinel.
    for (address, name, word) in
        [(&addresses[..], "other", "knows"), ("redis://127.0.0.1:1", NAME, "refused")]
    {
        let place = Place::sentinel(address.split(','), name, "redis://127.0.0.1").unwrap();
        let error = Locks::at(place, Settings::new()).lock("k").try_acquire().unwrap_err();
        assert!(error.kind() == "unavailable" && error.text().contains(word), "{error}");
    }
}

fn in_cluster(cluster: &Cluster, node: usize) -> Locks {
    Locks::at(Place::cluster([cluster.nodes[node].url()]).unwrap(), Settings::new())
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
        held_by(&holds[hold], &cluster.nodes[node].client().call(&format!("LOCK.INFO {key}")));
    }
    assert!(matches!(locks.lock("a").try_acquire(), Ok(None)));
    thread::scope(|scope| {
        let waits =
            [locks.lock("a"), locks.lock("b"), locks.lock("c").blocking(), locks.lock("d").blocking()];
        let waits = waits.map(|lock| scope.spawn(move || lock.wait(MAX_WAIT).acquire()));
        until("both nodes have two waiters", || (0..2).all(|node| waiting(&cluster, node) == "2"));
        for hold in &holds {
            hold.guard(&["SET", &format!("{{{}}}:x", String::from_utf8_lossy(hold.key())), "1"]).unwrap();
            hold.extend(LONG).unwrap();
            hold.release().unwrap();
        }
        for wait in waits {
            wait.join().unwrap().unwrap().release().unwrap();
        }
    });
    locks.close();
    // A named node that has left the cluster is skipped.
    let alone = Server::with_module(flavor, &["--cluster-enabled", "yes"]);
    let place = Place::cluster([alone.url(), cluster.nodes[0].url()]).unwrap();
    let locks = Locks::at(place, Settings::new());
    locks.lock("a").wait(MAX_WAIT).acquire().unwrap().release().unwrap();
    locks.close();
    // `MOVED` is an error for a client without cluster support; it is not followed.
    let client = redis::Client::open(cluster.nodes[0].url()).unwrap();
    let locks = Locks::with_settings(&client, Settings::new()).unwrap();
    let error = locks.lock("a").wait(MAX_WAIT).acquire().unwrap_err();
    assert!(error.text().starts_with("MOVED"), "{error}");
    locks.close();
    for key in ["a", "b", "c", "d"] {
        let node = usize::from(matches!(key, "a" | "d"));
        assert_eq!(cluster.nodes[node].client().call(&format!("LOCK.INFO {key}")), FREE);
    }
    cluster.assert_healthy();
}

fn holds_and_waits_move_with_their_slot(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let locks = in_cluster(&cluster, 0);
    let hold = locks.lock("b").lease(Duration::from_millis(1500)).keep(true).acquire().unwrap();
    thread::scope(|scope| {
        let waits = [locks.lock("b"), locks.lock("b").blocking()];
        let waits = waits.map(|lock| scope.spawn(move || lock.wait(MAX_WAIT).acquire().unwrap()));
        until("they wait", || waiting(&cluster, 0) == "2");
        cluster.migrate_all("b", 0, 1);
        until("they wait at the new node", || waiting(&cluster, 1) == "2");
        until("the hold is renewed at the new node", || {
            cluster.nodes[1].client().call("LOCK.INFO b").contains("ephemeral, 1")
        });
        held_by(&hold, &cluster.nodes[1].client().call("LOCK.INFO b"));
        hold.release().unwrap();
        for wait in waits {
            // A granted wait must release before the other can be granted.
            scope.spawn(move || wait.join().unwrap().release().unwrap());
        }
    });
    // During a migration, a moved key is reached by `ASK`.
    let hold = locks.lock("c").lease(LONG).acquire().unwrap();
    cluster.migrate_keys("c", 0, 1);
    let mut first = cluster.nodes[0].client();
    assert!(first.call("LOCK.INFO c").starts_with("ASK"));
    hold.extend(LONG).unwrap();
    thread::scope(|scope| {
        // Requests with an ID have to wait for the end of the migration, as their record may be at either node.
        let release = scope.spawn(|| hold.release());
        let waits = [locks.lock("c"), locks.lock("c").blocking()];
        let waits = waits.map(|lock| scope.spawn(move || lock.wait(MAX_WAIT).acquire()));
        cluster.end_migration("c", 0, 1);
        release.join().unwrap().unwrap();
        for wait in waits {
            scope.spawn(move || wait.join().unwrap().unwrap().release().unwrap());
        }
    });
    locks.close();
    for key in ["b", "c"] {
        assert_eq!(cluster.nodes[1].client().call(&format!("LOCK.INFO {key}")), FREE);
    }
    cluster.assert_healthy();
}

fn a_dead_node_is_not_asked_again(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let both = cluster.nodes.iter().map(Server::url);
    let locks = Locks::at(Place::cluster(both).unwrap(), Settings::new().patience(Duration::from_secs(2)));
    let [gone, stays] = ["b", "a"].map(|key| locks.lock(key).lease(LONG).keep(true).acquire().unwrap());
    cluster.nodes[0].signal(libc::SIGKILL);
    until("the failure is noticed", || locks.lock("b").wait(Duration::ZERO).try_acquire().is_err());
    assert!(gone.extend_once(LONG).is_err());
    // The first of the named nodes does not answer.
    stays.extend(LONG).unwrap();
    for key in ["a", "d"] {
        let hold = locks.lock(format!("{{{key}}}:more")).acquire().unwrap();
        hold.release().unwrap();
    }
    stays.release().unwrap();
    locks.close();
    assert!(gone.is_lost());
    assert_eq!(cluster.nodes[1].client().call("LOCK.INFO a"), FREE);
}

fn locks_use_tls(flavor: Flavor) {
    let certificates = Certificates::sign();
    let server = Server::with_module(flavor, &[]);
    let port = certificates.serve(&server);
    let mut a = server.client();
    let read = |name: &str| CertificateDer::from_pem_slice(&certificates.read(name)).unwrap();
    let config = |trusted: bool, known: bool| {
        let mut roots = RootCertStore::empty();
        if trusted {
            roots.add(read("ca.crt")).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        if !known {
            return builder.with_no_client_auth();
        }
        let key = PrivateKeyDer::from_pem_slice(&certificates.read("client.key")).unwrap();
        builder.with_client_auth_cert(vec![read("client.crt")], key).unwrap()
    };
    let at = |config: ClientConfig| {
        let place = Place::alone(format!("rediss://localhost:{port}")).unwrap().tls(config);
        Locks::at(place, Settings::new().patience(Duration::from_secs(2)))
    };
    let locks = at(config(true, true));
    let first = locks.lock("k").acquire().unwrap();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..20)
            .map(|number| {
                let lock = locks.lock("k").wait(LONG);
                let lock = if number % 4 == 0 { lock.blocking() } else { lock };
                scope.spawn(move || lock.acquire().unwrap().release().unwrap())
            })
            .collect();
        until("they wait", || a.info("lock", "lock_waiters") == "20");
        // The data is too long for a single read or write, in both directions.
        let text = "x".repeat(1 << 20);
        first.guard(&["SET", "big", &text]).unwrap();
        let back: String = redis::from_redis_value(first.guard(&["GET", "big"]).unwrap()).unwrap();
        assert!(back == text);
        first.release().unwrap();
        for wait in waits {
            wait.join().unwrap();
        }
    });
    locks.close();
    assert_eq!(a.call("LOCK.INFO k"), FREE);
    for (trusted, known) in [(false, true), (true, false)] {
        let error = at(config(trusted, known)).lock("k").try_acquire().unwrap_err();
        assert!(error.kind() == "unavailable" && error.text().contains("ertificate"), "{error}");
    }
    // The system's certificate authorities do not include ours.
    let place = Place::alone(format!("rediss://localhost:{port}")).unwrap();
    let error = Locks::at(place, Settings::new()).lock("k").try_acquire().unwrap_err();
    assert!(error.text().contains("ertificate"), "{error}");
    assert!(Place::alone(format!("rediss://localhost:{port}#insecure")).is_err());
    assert_eq!(a.call("CONFIG SET tls-port 0"), "OK");
}
