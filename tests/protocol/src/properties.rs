// SPDX-License-Identifier: MIT
//! The properties that every state must have.

use stateright::Property;

use crate::calls::HoldKind;
use crate::client::{Acquire, Phase, Progress};
use crate::lock::Owner;
use crate::network::Purpose;
use crate::scenario::Scenario;
use crate::world::World;

/// A violated property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// A hold is safe while the lock belongs to another owner.
    TwoOwners,
    /// A hold is safe, and the server does not have it.
    SafeHoldNotHeld,
    /// A late or repeated call released or took the hold of another number.
    ForeignHoldTouched,
    /// The server renews a hold that no client knows of.
    UnknownHold,
    /// An acquire was granted twice, and no session has the second hold.
    GrantedTwice,
    /// A wait of a live session has no place in the queue and no event.
    WaitLost,
    /// A wait stays in the queue although the lock is free.
    WaitNotServed,
    /// The client's newest OPEN or EVENTS got the reply `LATE`.
    NewestCallLate,
    /// An acquire got the reply `LATE` although its client awaits the reply.
    AwaitedAcquireLate,
    /// A call of a session that is over had an effect.
    EndedSessionHadEffect,
    /// An undisturbed client's hold is not safe for some time.
    HoldInJeopardy,
    /// A later acquire overtook a wait.
    WaitOvertaken,
}

impl Breach {
    pub const ALL: [Breach; 12] = [
        Breach::TwoOwners,
        Breach::SafeHoldNotHeld,
        Breach::ForeignHoldTouched,
        Breach::UnknownHold,
        Breach::GrantedTwice,
        Breach::WaitLost,
        Breach::WaitNotServed,
        Breach::NewestCallLate,
        Breach::AwaitedAcquireLate,
        Breach::EndedSessionHadEffect,
        Breach::HoldInJeopardy,
        Breach::WaitOvertaken,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Breach::TwoOwners => "no two owners hold the lock",
            Breach::SafeHoldNotHeld => "a safe hold is held",
            Breach::ForeignHoldTouched => "a call concerns the hold of its own number only",
            Breach::UnknownHold => "every renewed hold is known to its client",
            Breach::GrantedTwice => "an acquire is granted once",
            Breach::WaitLost => "no wait is lost",
            Breach::WaitNotServed => "no wait stands before a free lock",
            Breach::NewestCallLate => "the newest call is never late",
            Breach::AwaitedAcquireLate => "an awaited acquire is never late",
            Breach::EndedSessionHadEffect => "a session that is over has no effect",
            Breach::HoldInJeopardy => "a hold stays safe without faults",
            Breach::WaitOvertaken => "waits are served in order",
        }
    }

    fn property(self) -> Property<Scenario> {
        macro_rules! never {
            ($($breach:ident)*) => {
                match self {
                    $(Breach::$breach => Property::always(self.name(), |_: &Scenario, world: &World| {
                        world.breach != Some(Breach::$breach)
                    }),)*
                }
            };
        }
        never!(TwoOwners SafeHoldNotHeld ForeignHoldTouched UnknownHold GrantedTwice WaitLost WaitNotServed
            NewestCallLate AwaitedAcquireLate EndedSessionHadEffect HoldInJeopardy WaitOvertaken)
    }
}

/// All properties, for the checker.
pub fn all() -> Vec<Property<Scenario>> {
    Breach::ALL.into_iter().map(Breach::property).collect()
}

/// Returns the first property that `world` violates.
pub fn find_breach(scenario: &Scenario, world: &World) -> Option<Breach> {
    let reported =
        world.server.breach.into_iter().chain(world.clients.iter().filter_map(|client| client.breach));
    reported
        .chain(unsafe_holds(scenario, world))
        .chain(double_grants(world))
        .chain(forgotten(world))
        .chain(jeopardy(scenario, world))
        .find(|breach| !scenario.unchecked.contains(breach))
}

/// Compares the safe holds of each owner with the lock.
fn unsafe_holds(scenario: &Scenario, world: &World) -> Option<Breach> {
    let safe_holds = world.clients.iter().flat_map(|client| {
        let safe = client.acquires.iter().filter(|acquire| client.is_safe(scenario, acquire));
        safe.map(|acquire| (scenario.owner(client.identity, acquire.n), acquire.request.shared))
    });
    let safe_holds: Vec<(Owner, bool)> = safe_holds.collect();
    for (owner, shared) in &safe_holds {
        if world.server.lock.excludes(*owner, *shared) {
            return Some(Breach::TwoOwners);
        }
        let count = safe_holds.iter().filter(|(other, _)| other == owner).count();
        if count > usize::from(world.server.lock.count(*owner)) {
            return Some(Breach::SafeHoldNotHeld);
        }
    }
    None
}

fn double_grants(world: &World) -> Option<Breach> {
    for holder in &world.server.lock.holders {
        for hold in &holder.holds {
            let count = holder.holds.iter().filter(|other| *other == hold).count();
            let bindings = world.server.bindings.iter();
            let bound =
                bindings.filter(|binding| binding.id.client == hold.client && binding.n == hold.n).count();
            if count > 1 && bound < count {
                return Some(Breach::GrantedTwice);
            }
        }
    }
    None
}

/// Whether nothing is under way: clients and server know all that they ever will.
fn is_quiet(world: &World) -> bool {
    let connections = &world.network.connections;
    let is_settled = |acquire: &Acquire| match acquire.progress {
        // The acquire of a handed-over hold must have begun. Other acquires may still be to do.
        Progress::Todo => acquire.from.is_none(),
        Progress::Queued | Progress::Held | Progress::Done | Progress::Lost => true,
        Progress::Asking | Progress::Releasing | Progress::Cancelling => false,
    };
    !world.server.stalled
        && world.server.grants_now()
        && connections.len() == world.clients.len()
        && connections.iter().all(|connection| {
            connection.purpose == Purpose::Reader
                && connection.blocked.is_some()
                && connection.open_at_client
                && connection.open_at_server
        })
        && world
            .clients
            .iter()
            .all(|client| client.phase == Phase::Up && client.acquires.iter().all(is_settled))
}

/// Looks for grants and waits that client and server do not agree on in a quiet state.
fn forgotten(world: &World) -> Option<Breach> {
    if !is_quiet(world) {
        return None;
    }
    let server = &world.server;
    for client in &world.clients {
        let own = server.bindings.iter().filter(|binding| Some(binding.id) == client.id);
        for binding in
            own.filter(|binding| binding.kind == HoldKind::SessionBound && binding.max_left.is_none())
        {
            let is_known = |progress, n| n == binding.n && progress == Progress::Held;
            if !client.acquires.iter().any(|acquire| is_known(acquire.progress, acquire.n)) {
                return Some(Breach::UnknownHold);
            }
        }
        for acquire in client.acquires.iter().filter(|acquire| acquire.progress == Progress::Queued) {
            let is_queued = server.queue.iter().any(|wait| Some(wait.id) == client.id && wait.n == acquire.n);
            if !is_queued {
                return Some(Breach::WaitLost);
            }
            if server.lock.is_free() {
                return Some(Breach::WaitNotServed);
            }
        }
    }
    None
}

/// Without faults, a hold is safe from the client's first EVENTS on.
fn jeopardy(scenario: &Scenario, world: &World) -> Option<Breach> {
    let is_unsafe = |client: &crate::client::Client| {
        client.phase == Phase::Up
            && client.has_confirmed
            && client.safe_left == 0
            && client.acquires.iter().any(|acquire| acquire.progress == Progress::Held)
    };
    (scenario.prompt && scenario.grace > 0 && world.clients.iter().any(is_unsafe))
        .then_some(Breach::HoldInJeopardy)
}
