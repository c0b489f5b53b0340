//! Taking, re-entering, renewing, giving back and breaking a lock, without anybody waiting.

use crate::support::{in_world, Flavor};

crate::on_every_server!(an_owner_takes_and_gives_back);

fn an_owner_takes_and_gives_back(flavor: Flavor) {
    in_world(flavor, |world| {
        let mut a = world.client();
        assert_eq!(a.call("LOCK.ACQUIRE k alice PX 50000"), "1");
        assert_eq!(a.call("LOCK.ACQUIRE k bob"), "nil");
        assert_eq!(a.call("LOCK.ACQUIRE k alice"), "2");
        assert_eq!(a.call("HGETALL k"), "[alice, 2]");
        assert_eq!(a.call("LOCK.RELEASE k alice"), "1");
        assert_eq!(a.call("LOCK.RELEASE k alice"), "0");
        assert_eq!(a.call("EXISTS k"), "0");
        assert_eq!(a.call("LOCK.ACQUIRE k bob"), "1");
    });
}
