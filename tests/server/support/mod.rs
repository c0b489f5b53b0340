// SPDX-License-Identifier: MIT

//! The harness: real servers, clients under full control, and what must hold after every scenario.

pub mod cli;
pub mod client;
pub mod cluster;
pub mod driver;
pub mod network;
pub mod programs;
pub mod proxy;
pub mod redisson;
pub mod sentinel;
pub mod server;
pub mod servers;
pub mod tls;
pub mod tmux;
pub mod world;

pub use client::{show, Client};
pub use server::{until, Flavor, Server};
pub use world::World;

/// Runs a scenario on a primary with a replica, and then [`World::verify`].
pub fn in_world(flavor: Flavor, scenario: impl FnOnce(&World)) {
    in_world_with(flavor, &[], scenario);
}

/// Runs a scenario as [`in_world`], with arguments for the primary.
pub fn in_world_with(flavor: Flavor, args: &[&str], scenario: impl FnOnce(&World)) {
    let world = World::start(flavor, args);
    scenario(&world);
    world.verify();
}

/// Makes a test for each server out of every function of the enclosing module that is named here. Each gets the
/// [`Flavor`]. With `Valkey:` before the names, only for the servers of that kind.
#[macro_export]
macro_rules! on_every_server {
    (Valkey: $($names:tt)*) => { $crate::on_servers!(Valkey $($names)*); };
    ($($names:tt)*) => { $crate::on_servers!(Any $($names)*); };
}

/// Makes such tests for the servers of one kind, or `Any`.
#[macro_export]
macro_rules! on_servers {
    ($kind:ident $($(#[$attribute:meta])* $name:ident),* $(,)?) => { $(
        mod $name {
            use $crate::support::Flavor;
            $crate::with_all_servers!(test_on_each [$kind $(#[$attribute])*]);
            fn on(flavor: Flavor) {
                if flavor.is_installed() {
                    super::$name(flavor);
                }
            }
        }
    )* };
}

/// A test for each line of `servers.rs` that calls the function `on` beside it.
#[macro_export]
macro_rules! test_on_each {
    ($given:tt $($server:tt)*) => { $( $crate::test_on_one!($given $server); )* };
}

/// A test for one line of `servers.rs`.
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
