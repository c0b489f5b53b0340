// SPDX-License-Identifier: MIT

//! The benchmarks' baseline module queues clients in order, on every server.

use crate::support::programs::built;
use crate::support::{Flavor, Server};

crate::on_every_server!(the_floor_hands_over_in_order);

fn the_floor_hands_over_in_order(flavor: Flavor) {
    let server = Server::start(flavor, &["--loadmodule", built("libfloor.so").to_str().unwrap()]);
    let mut a = server.client();
    assert_eq!(a.call("FLOOR.RELEASE k a"), "0");
    assert_eq!(a.call("FLOOR.ACQUIRE k a BLOCK 0"), "1");
    let mut b = server.waiting("FLOOR.ACQUIRE k b BLOCK 0");
    let mut c = server.waiting("FLOOR.ACQUIRE k c BLOCK 0");
    assert_eq!(a.call("FLOOR.ACQUIRE other a BLOCK 0"), "1");
    assert_eq!(a.call("FLOOR.RELEASE k a"), "1");
    assert_eq!(b.recv(), "1");
    assert!(c.has_nothing());
    assert_eq!(b.call("FLOOR.RELEASE k b"), "1");
    assert_eq!(c.recv(), "1");
    assert_eq!(c.call("FLOOR.RELEASE k c"), "1");
    assert_eq!(c.call("FLOOR.RELEASE k c"), "0");
    assert_eq!(a.call("DBSIZE"), "0");
}
