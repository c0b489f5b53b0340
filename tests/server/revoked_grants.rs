// SPDX-License-Identifier: MIT

//! A grant whose client has disconnected is revoked without a trace: its lease, token and count are undone (invariants 1, 5).
//! The owner waits on several connections, and a grant delivered on one of them stays.

use crate::support::{in_world, show, until, Client, Flavor, World};

crate::on_every_server!(
    a_delivered_grant_keeps_its_lease,
    a_revoked_longer_lease_is_undone,
    a_revoked_token_is_removed,
    a_revoked_upgrade_is_undone,
    a_shared_hold_keeps_its_lease,
    a_retry_after_revocation_has_its_lease,
    later_renewals_survive_the_revocation,
    a_reentry_without_lease_shortens_nothing,
);

/// The server reads the release and the waiter's disconnect in one event loop iteration.
fn release_during_disconnect(world: &World, holder: &mut Client, release: &str, disconnected: &Client) {
    world.primary.signal(libc::SIGSTOP);
    holder.send(release);
    disconnected.close_half();
    world.primary.signal(libc::SIGCONT);
    assert_eq!(holder.recv(), "0");
}

/// Accepts an error, or no reply if the server read the disconnect first.
fn assert_no_grant(mut disconnected: Client) {
    if let Ok(delivered) = disconnected.try_recv() {
        let delivered = show(&delivered);
        assert!(delivered.starts_with("UNBLOCKED client closed the connection"), "{delivered}");
    }
}

/// Two waits of `b` are granted by a release of `a`. The first is delivered, the second one's client has disconnected.
fn grant_both(world: &World, first: &str, second: &str) -> String {
    let mut a = world.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 600000"), "1");
    let mut delivered = world.waiting(&format!("LOCK.ACQUIRE k b BLOCK 0 {first}"));
    let disconnected = world.waiting(&format!("LOCK.ACQUIRE k b BLOCK 0 {second}"));
    release_during_disconnect(world, &mut a, "LOCK.RELEASE k a", &disconnected);
    let granted = delivered.recv();
    assert_no_grant(disconnected);
    until("the second grant is revoked", || a.call("HGET k b") == "1");
    granted
}

fn a_delivered_grant_keeps_its_lease(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 280"), "1");
        let mut a = world.client();
        let left = a.number("PTTL k");
        assert!(left > 50_000, "{left} ms are left of 60,000");
    });
}

fn a_revoked_longer_lease_is_undone(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 600000"), "1");
        let mut a = world.client();
        let left = a.number("PTTL k");
        assert!((50_000..=60_000).contains(&left), "{left} ms are left of 60,000");
    });
}

fn a_revoked_token_is_removed(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 60000 FENCE"), "1");
        let mut a = world.client();
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        assert!(a.call("LOCK.INFO k").contains("token, nil"), "{}", a.call("LOCK.INFO k"));
        // A delivered token stays, and is smaller than the next.
        a.call("LOCK.BREAK k");
        let granted = grant_both(world, "PX 60000 FENCE", "PX 60000 FENCE");
        let token = granted.trim_end_matches(']').rsplit(' ').next().unwrap().to_owned();
        assert_eq!(a.call("HGET k #fence"), token);
    });
}

/// Undoes the upgrade's lease, token and mode.
fn a_revoked_upgrade_is_undone(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k other SHARED PX 600000");
        let token = a.call("LOCK.ACQUIRE k b SHARED FENCE PX 60000");
        let token = token.trim_end_matches(']').rsplit(' ').next().unwrap().to_owned();
        let disconnected = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 280 FENCE");
        release_during_disconnect(world, &mut a, "LOCK.RELEASE k other", &disconnected);
        assert_no_grant(disconnected);
        until("the upgrade is revoked", || a.call("HLEN k") == "1");
        let info = a.call("LOCK.INFO k");
        assert!(info.starts_with("[mode, shared,") && info.contains(&format!("token, {token}")), "{info}");
        assert!(a.number("PTTL k") > 50_000);
        assert!(a.call("HGET k #shared:b").ends_with(&token));
    });
}

fn a_shared_hold_keeps_its_lease(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k a PX 600000");
        let mut delivered = world.waiting("LOCK.ACQUIRE k b SHARED BLOCK 0 PX 60000");
        let disconnected = world.waiting("LOCK.ACQUIRE k b SHARED BLOCK 0 PX 280 FENCE");
        release_during_disconnect(world, &mut a, "LOCK.RELEASE k a", &disconnected);
        assert_eq!(delivered.recv(), "1");
        assert_no_grant(disconnected);
        until("the second grant is revoked", || a.call("HGET k #shared:b").starts_with("1:"));
        assert_eq!(a.call("HGET k #shared:b").matches(':').count(), 1, "an undelivered token is left");
        assert!(a.number("PTTL k") > 50_000);
    });
}

fn a_retry_after_revocation_has_its_lease(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 280 ID r"), "1");
        let mut a = world.client();
        assert!(a.number("PTTL k") > 50_000);
        assert_eq!(a.call("LOCK.ACQUIRE k b PX 30000 ID r"), "2");
        assert!(a.number("PTTL k") <= 30_000);
    });
}

/// The renewals come in the same event loop iteration, after the grant that is revoked.
fn later_renewals_survive_the_revocation(flavor: Flavor) {
    in_world(flavor, |world| {
        for (set, holds, lease) in [
            ("LOCK.RENEW k b PX 200000", "1", 150_000..=200_000),
            ("LOCK.ACQUIRE k b PX 20000", "2", 10_000..=20_000),
            ("LOCK.ACQUIRE k b", "2", 50_000..=60_000),
        ] {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a PX 600000");
            let mut delivered = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 60000");
            let disconnected = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 280 FENCE");
            world.primary.signal(libc::SIGSTOP);
            a.send_at_once(&["LOCK.RELEASE k a", set]);
            disconnected.close_half();
            world.primary.signal(libc::SIGCONT);
            assert_eq!(a.recv(), "0");
            a.recv();
            assert_eq!(delivered.recv(), "1");
            assert_no_grant(disconnected);
            until("the second grant is revoked", || a.call("HGET k b") == holds);
            assert_eq!(a.call("HGETALL k"), format!("[b, {holds}]"));
            let left = a.number("PTTL k");
            assert!(lease.contains(&left), "{left} ms are left after {set}");
            a.call("LOCK.BREAK k");
        }
    });
}

fn a_reentry_without_lease_shortens_nothing(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        for mode in ["", " SHARED"] {
            a.call(&format!("LOCK.ACQUIRE k a PX 90000{mode}"));
            a.call(&format!("LOCK.ACQUIRE k a{mode}"));
            assert!(a.number("PTTL k") > 80_000);
            a.call(&format!("LOCK.ACQUIRE k a PX 5000{mode}"));
            assert!(a.number("PTTL k") <= 5_000);
            a.call(&format!("LOCK.ACQUIRE k a{mode}"));
            assert!(a.number("PTTL k") > 20_000);
            a.call("LOCK.BREAK k");
        }
        // The grant of a waiter with a watchdog does not shorten the lease, either.
        a.call("LOCK.ACQUIRE k other SHARED PX 600000");
        a.call("LOCK.ACQUIRE k b SHARED PX 90000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 WATCHDOG");
        a.call("LOCK.RELEASE k other");
        assert_eq!(b.recv(), "2");
        assert!(a.number("PTTL k") > 80_000);
    });
}
