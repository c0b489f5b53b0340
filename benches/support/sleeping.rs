// SPDX-License-Identifier: MIT

//! What a hand-over costs the server if all sleep until there is something to do for them: its clients, and the server itself
//! between any two calls. For the module, and for the one that only queues clients and unblocks them.

use super::callgrind::Part;
use super::clients::{floor_calls, native_calls};
use super::ring::{Pace, Ring};
use super::server::{floor_module, Server, Setup};
use super::swarm::Door;
use super::wire::Wire;
use super::{packed, unless_quick, Outcome};

/// Hand-overs before those that count: what is made when a lock is used for the first time is there then.
const WARM_UP: u32 = 100;

/// So many parts of equal length are counted, and the least counts: what is done by time, and not for a hand-over, can only add
/// to it. That is more on a busy machine.
const PARTS: u32 = 4;

/// A lease that no pause of a busy machine outlasts, with a server under callgrind, in milliseconds. Before Redis 7.2.2 the server
/// spins where a module's timer is more than 35 minutes away.
const LONG_LEASE_MS: &str = "600000";

/// Of more clients than these, only one ring is there at a time.
const MOST_AT_ONCE: usize = 1000;

/// Whose commands the clients use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Module,
    Floor,
}

impl Contender {
    /// A server with the commands.
    pub fn start(self, setup: Setup) -> Outcome<Server> {
        match self {
            Contender::Module => setup.option("lock.default-lease", LONG_LEASE_MS).start(),
            Contender::Floor => setup.without_module().option("loadmodule", &floor_module()?).start(),
        }
    }

    /// So many clients, of whom all but one wait.
    pub fn ring(self, server: &mut Server, clients: usize) -> Outcome<Ring> {
        let calls = match self {
            Contender::Module => native_calls,
            Contender::Floor => floor_calls,
        };
        // Its answer says that the server has accepted the connection.
        let greetings = [packed("PING")];
        let door =
            Door { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections: 1 };
        let ring = Ring::start(&door, (0..clients).map(|number| calls("ring", number)).collect())?;
        let waiting = (clients - 1).to_string();
        server.until("all but one wait", |server| Ok(server.info("blocked_clients")? == waiting))?;
        Ok(ring)
    }
}

/// What one hand-over is for the server.
pub struct HandOver {
    pub instructions: f64,
    /// Of the event loop.
    pub turns: f64,
}

/// One among so many clients, counted by callgrind.
pub fn count(contender: Contender, clients: usize) -> Outcome<HandOver> {
    let mut server = contender.start(Setup::new().under_callgrind_in_part())?;
    let mut ring = contender.ring(&mut server, clients)?;
    let pace = Pace::Asleep(server.process());
    ring.hand_over(WARM_UP, pace)?;
    let times = u32::try_from(clients)?.max(unless_quick(2000, 400)) / PARTS;
    let mut least: Option<Part> = None;
    for _ in 0..PARTS {
        let part = server.count(|| ring.hand_over(times, pace))?;
        least = least.into_iter().chain([part]).min_by_key(|part| part.instructions);
    }
    let part = least.ok_or("no part was counted")?;
    let each = |total: u64| total as f64 / f64::from(times);
    let turns = each(part.calls_of("epoll_wait"));
    // The release and the next acquire are apart.
    if turns < 1.99 {
        return Err(
            format!("the server has not slept between the calls: {turns:.2} turns for a hand-over").into()
        );
    }
    Ok(HandOver { instructions: each(part.instructions), turns })
}

/// The module's and the floor's, counted at the same time if that needs no more files than a process may well have open.
pub fn count_both(clients: usize) -> Outcome<(HandOver, HandOver)> {
    if clients > MOST_AT_ONCE {
        return Ok((count(Contender::Module, clients)?, count(Contender::Floor, clients)?));
    }
    std::thread::scope(|scope| {
        let floor = scope.spawn(|| count(Contender::Floor, clients));
        let module = count(Contender::Module, clients)?;
        Ok((module, floor.join().map_err(|_| "a thread has panicked")??))
    })
}
