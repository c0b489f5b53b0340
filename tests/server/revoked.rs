// SPDX-License-Identifier: MIT

//! A grant whose client is gone is revoked, and leaves nothing of itself behind: neither its lease, nor its token, nor its
//! count (1, 5). The same owner waits on several connections, and what one of them was answered stays so.

use crate::support::{in_world, show, until, Client, Flavor, World};

crate::on_every_server!(
    the_lease_of_the_one_that_was_told_stays,
    a_longer_lease_that_nobody_was_told_of_goes,
    a_token_that_nobody_was_told_of_goes,
    an_upgrade_that_nobody_was_told_of_goes,
    a_shared_hold_keeps_its_lease,
    a_retry_is_a_new_call_with_its_own_lease,
    what_the_owner_sets_anew_stays,
    a_re_entry_without_a_lease_shortens_none,
);

/// The server finds the release and the end of the client that waits in the same turn of its event loop.
fn release_while_it_hangs_up(world: &World, holder: &mut Client, release: &str, gone: &Client) {
    world.primary.signal(libc::SIGSTOP);
    holder.send(release);
    gone.close_half();
    world.primary.signal(libc::SIGCONT);
    assert_eq!(holder.recv(), "0");
}

/// An error, or nothing at all, where the server has read the end of the connection first.
fn is_not_told_of_a_grant(mut gone: Client) {
    if let Ok(told) = gone.try_recv() {
        let told = show(&told);
        assert!(told.starts_with("UNBLOCKED client closed the connection"), "{told}");
    }
}

/// Two waits of `b`, of which the first is answered and the second is gone, after this was released by `a`.
fn grant_both(world: &World, first: &str, second: &str) -> String {
    let mut a = world.client();
    assert_eq!(a.call("LOCK.ACQUIRE k a PX 600000"), "1");
    let mut told = world.waiting(&format!("LOCK.ACQUIRE k b BLOCK 0 {first}"));
    let gone = world.waiting(&format!("LOCK.ACQUIRE k b BLOCK 0 {second}"));
    release_while_it_hangs_up(world, &mut a, "LOCK.RELEASE k a", &gone);
    let granted = told.recv();
    is_not_told_of_a_grant(gone);
    until("it is revoked", || a.call("HGET k b") == "1");
    granted
}

fn the_lease_of_the_one_that_was_told_stays(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 280"), "1");
        let mut a = world.client();
        let left = a.number("PTTL k");
        assert!(left > 50_000, "{left} ms are left of 60,000");
    });
}

fn a_longer_lease_that_nobody_was_told_of_goes(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 600000"), "1");
        let mut a = world.client();
        let left = a.number("PTTL k");
        assert!((50_000..=60_000).contains(&left), "{left} ms are left of 60,000");
    });
}

fn a_token_that_nobody_was_told_of_goes(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 60000 FENCE"), "1");
        let mut a = world.client();
        assert_eq!(a.call("HGETALL k"), "[b, 1]");
        assert!(a.call("LOCK.INFO k").contains("token, nil"), "{}", a.call("LOCK.INFO k"));
        // One that was answered stays, and is still smaller than the next.
        a.call("LOCK.BREAK k");
        let granted = grant_both(world, "PX 60000 FENCE", "PX 60000 FENCE");
        let token = granted.trim_end_matches(']').rsplit(' ').next().unwrap().to_owned();
        assert_eq!(a.call("HGET k #fence"), token);
    });
}

/// The upgrade's lease, token and mode.
fn an_upgrade_that_nobody_was_told_of_goes(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        a.call("LOCK.ACQUIRE k other SHARED PX 600000");
        let token = a.call("LOCK.ACQUIRE k b SHARED FENCE PX 60000");
        let token = token.trim_end_matches(']').rsplit(' ').next().unwrap().to_owned();
        let gone = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 280 FENCE");
        release_while_it_hangs_up(world, &mut a, "LOCK.RELEASE k other", &gone);
        is_not_told_of_a_grant(gone);
        until("it is revoked", || a.call("HLEN k") == "1");
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
        let mut told = world.waiting("LOCK.ACQUIRE k b SHARED BLOCK 0 PX 60000");
        let gone = world.waiting("LOCK.ACQUIRE k b SHARED BLOCK 0 PX 280 FENCE");
        release_while_it_hangs_up(world, &mut a, "LOCK.RELEASE k a", &gone);
        assert_eq!(told.recv(), "1");
        is_not_told_of_a_grant(gone);
        until("it is revoked", || a.call("HGET k #shared:b").starts_with("1:"));
        assert_eq!(a.call("HGET k #shared:b").matches(':').count(), 1, "a token that nobody was told");
        assert!(a.number("PTTL k") > 50_000);
    });
}

fn a_retry_is_a_new_call_with_its_own_lease(flavor: Flavor) {
    in_world(flavor, |world| {
        assert_eq!(grant_both(world, "PX 60000", "PX 280 ID r"), "1");
        let mut a = world.client();
        assert!(a.number("PTTL k") > 50_000);
        assert_eq!(a.call("LOCK.ACQUIRE k b PX 30000 ID r"), "2");
        assert!(a.number("PTTL k") <= 30_000);
    });
}

/// In the same turn, after the grant that is revoked.
fn what_the_owner_sets_anew_stays(flavor: Flavor) {
    in_world(flavor, |world| {
        for (set, holds, lease) in [
            ("LOCK.RENEW k b PX 200000", "1", 150_000..=200_000),
            ("LOCK.ACQUIRE k b PX 20000", "2", 10_000..=20_000),
            ("LOCK.ACQUIRE k b", "2", 50_000..=60_000),
        ] {
            let mut a = world.client();
            a.call("LOCK.ACQUIRE k a PX 600000");
            let mut told = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 60000");
            let gone = world.waiting("LOCK.ACQUIRE k b BLOCK 0 PX 280 FENCE");
            world.primary.signal(libc::SIGSTOP);
            a.send_at_once(&["LOCK.RELEASE k a", set]);
            gone.close_half();
            world.primary.signal(libc::SIGCONT);
            assert_eq!(a.recv(), "0");
            a.recv();
            assert_eq!(told.recv(), "1");
            is_not_told_of_a_grant(gone);
            until("it is revoked", || a.call("HGET k b") == holds);
            assert_eq!(a.call("HGETALL k"), format!("[b, {holds}]"));
            let left = a.number("PTTL k");
            assert!(lease.contains(&left), "{left} ms are left after {set}");
            a.call("LOCK.BREAK k");
        }
    });
}

fn a_re_entry_without_a_lease_shortens_none(flavor: Flavor) {
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
        // Also by a waiter, and what a watchdog renews.
        a.call("LOCK.ACQUIRE k other SHARED PX 600000");
        a.call("LOCK.ACQUIRE k b SHARED PX 90000");
        let mut b = world.waiting("LOCK.ACQUIRE k b BLOCK 0 WATCHDOG");
        a.call("LOCK.RELEASE k other");
        assert_eq!(b.recv(), "2");
        assert!(a.number("PTTL k") > 80_000);
    });
}
