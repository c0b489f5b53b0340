//! The harness: real servers, clients under full control, and what must hold after every scenario.

pub mod client;
pub mod programs;
pub mod proxy;
pub mod redisson;
pub mod sentinel;
pub mod server;
pub mod world;

pub use client::{show, Client};
pub use server::{until, Flavor, Server};
pub use world::World;

/// Runs a scenario on a primary with a replica, and then [`World::verify`].
pub fn in_world(flavor: Flavor, scenario: impl FnOnce(&World)) {
    in_world_with(flavor, &[], scenario);
}

/// The same with arguments for the primary.
pub fn in_world_with(flavor: Flavor, args: &[&str], scenario: impl FnOnce(&World)) {
    let world = World::start(flavor, args);
    scenario(&world);
    world.verify();
}

/// Makes a test for each server out of every function of the enclosing module that is named here. Each gets the
/// [`Flavor`].
#[macro_export]
macro_rules! on_every_server {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => { $(
        mod $name {
            use $crate::support::Flavor;
            $(#[$attribute])*
            #[test]
            fn redis_7() { on(Flavor::Redis7) }
            $(#[$attribute])*
            #[test]
            fn redis_8() { on(Flavor::Redis8) }
            $(#[$attribute])*
            #[test]
            fn valkey_8() { on(Flavor::Valkey8) }
            fn on(flavor: Flavor) {
                if flavor.is_installed() {
                    super::$name(flavor);
                }
            }
        }
    )* };
}
