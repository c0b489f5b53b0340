// SPDX-License-Identifier: MIT

//! The test kit, and the macros that make a test for each server.

pub use redis_lock_test_kit::artifacts::root;
pub use redis_lock_test_kit::faults::{network, proxy};
pub use redis_lock_test_kit::programs::{self, cli, driver, redisson, tmux};
pub use redis_lock_test_kit::server::{cluster, sentinel, tls, world};
pub use redis_lock_test_kit::session;
pub use redis_lock_test_kit::{client, lua, show, until, Client, Flavor, Server, Session, World};

/// Servers, and the module that they load.
pub mod server {
    pub use redis_lock_test_kit::artifacts::module;
    pub use redis_lock_test_kit::server::{load_module, unload_module};
}

/// Runs a scenario on a primary with a replica, and then [`World::verify`].
pub fn in_world(flavor: Flavor, scenario: impl FnOnce(&World)) {
    in_world_with(flavor, &[], scenario);
}

/// Runs a scenario as [`in_world`] does, with arguments for the primary.
pub fn in_world_with(flavor: Flavor, args: &[&str], scenario: impl FnOnce(&World)) {
    let world = World::start(flavor, args);
    scenario(&world);
    world.verify();
}

/// Runs a scenario as [`in_world`] does, and then waits until every table of the module is empty. A dropped [`Session`] is
/// closed.
pub fn with_sessions(flavor: Flavor, scenario: impl FnOnce(&World)) {
    in_world(flavor, |world| {
        scenario(world);
        until_tables_are_empty(world);
    });
}

/// Removes the addresses and names of connections from a reply.
pub fn without_addresses(reply: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut skips = false;
    for part in reply.split(", ") {
        let (word, end) = part.split_at(part.find([']', '}']).unwrap_or(part.len()));
        let is_resp3 = word.starts_with("address: ") || word.starts_with("name: ");
        if std::mem::take(&mut skips) || is_resp3 {
            if let Some(last) = parts.last_mut() {
                last.push_str(end);
            }
        } else if word == "address" || word == "name" {
            skips = true;
        } else {
            parts.push(part.to_owned());
        }
    }
    parts.join(", ")
}

/// Waits until every table of the module is empty.
pub fn until_tables_are_empty(server: &Server) {
    let mut client = server.client();
    until("every table is empty", || crate::tables::full_tables(&mut client).is_empty());
    assert_eq!(client.info("lock", "lock_internal_errors"), "0");
}

/// Makes a test on each server out of each named function of the enclosing module. The function takes the [`Flavor`]. With
/// `Valkey:` before the names, makes tests on Valkey only.
#[macro_export]
macro_rules! on_every_server {
    (Valkey: $($names:tt)*) => { $crate::on_servers!(Valkey $($names)*); };
    ($($names:tt)*) => { $crate::on_servers!(Any $($names)*); };
}

/// Makes tests for [`on_every_server`], on the servers of one kind or of `Any`.
#[macro_export]
macro_rules! on_servers {
    ($kind:ident $($(#[$attribute:meta])* $name:ident),* $(,)?) => { $(
        mod $name {
            use $crate::support::Flavor;
            redis_lock_test_kit::with_all_servers!([$crate::test_on_each] [$kind $(#[$attribute])*]);
            fn on(flavor: Flavor) {
                if flavor.is_installed() {
                    super::$name(flavor);
                }
            }
        }
    )* };
}

/// Makes a test for each line of the kit's list of servers. The tests call the function `on` in the same module.
#[macro_export]
macro_rules! test_on_each {
    ($given:tt $($server:tt)*) => { $( $crate::test_on_one!($given $server); )* };
}

/// Makes a test for one line of the kit's list of servers.
#[macro_export]
macro_rules! test_on_one {
    ($given:tt { $name:ident $variant:ident $kind:ident $program:literal $package:literal $needed:ident too_old }) => {};
    ([Valkey $($attributes:tt)*] { $name:ident $variant:ident Redis $($rest:tt)* }) => {};
    ([$of:ident $($attributes:tt)*] { $name:ident $variant:ident $($rest:tt)* }) => {
        $($attributes)*
        #[test]
        fn $name() { on(Flavor::$variant) }
    };
}

/// Makes tests out of each named function of the enclosing module. The newest Redisson is tested on every server, and each older
/// version on the server that Debian installs. The function takes the [`Flavor`] and the [`Version`](redisson::Version).
#[macro_export]
macro_rules! with_every_redisson {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => { $(
        mod $name {
            use $crate::support::redisson::Version;
            use $crate::support::Flavor;
            $(#[$attribute])*
            #[test]
            fn redisson_3_17_7() { with(Flavor::Redis7, Version::V3_17_7) }
            $(#[$attribute])*
            #[test]
            fn redisson_3_27_2() { with(Flavor::Redis7, Version::V3_27_2) }
            redis_lock_test_kit::with_all_servers!([$crate::test_on_each] [Any $(#[$attribute])*]);
            fn on(flavor: Flavor) { with(flavor, Version::V4_7_0) }
            fn with(flavor: Flavor, version: Version) {
                if flavor.is_installed() && version.is_installed() {
                    super::$name(flavor, version);
                }
            }
        }
    )* };
}
