// SPDX-License-Identifier: MIT

//! The server's cost of a hand-over among sleeping programs: clients sleep until they get a reply, and the server sleeps
//! between any two calls. Compares redis-lock with the floor, a module that only queues clients and unblocks them.

use super::callgrind::least_part;
use super::clients::{floor_calls, native_calls, renewed_calls};
use super::ring::{Pace, Ring};
use super::server::{floor_module, Server, Setup};
use super::swarm::Endpoint;
use super::wire::Wire;
use super::{packed, unless_quick, Outcome};

/// A lease in milliseconds, longer than a slow run under callgrind. It is below 35 minutes: servers before Redis 7.2.2
/// run a busy loop while a module's timer is further away than that.
const LONG_LEASE_MS: &str = "600000";

/// The maximum number of clients per ring if two rings run at the same time.
const MAX_PARALLEL_CLIENTS: usize = 1000;

/// The module whose commands the clients use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Module,
    /// The module, with leases that the server renews.
    Renewed,
    Floor,
}

impl Contender {
    /// Starts a server with the module.
    pub fn start(self, setup: Setup) -> Outcome<Server> {
        match self {
            Contender::Module | Contender::Renewed => {
                setup.option("lock.default-lease", LONG_LEASE_MS).start()
            }
            Contender::Floor => setup.without_module().option("loadmodule", &floor_module()).start(),
        }
    }

    /// Connects this number of clients. All but one wait.
    pub fn ring(self, server: &mut Server, clients: usize) -> Outcome<Ring> {
        let calls = match self {
            Contender::Module => native_calls,
            Contender::Renewed => renewed_calls,
            Contender::Floor => floor_calls,
        };
        // The reply shows that the server has accepted the connection.
        let greetings = [packed("PING")];
        let endpoint =
            Endpoint { address: server.address(), wire: Wire::Redis, greetings: &greetings, connections: 1 };
        let ring = Ring::start(&endpoint, (0..clients).map(|number| calls("ring", number)).collect())?;
        let waiting = (clients - 1).to_string();
        server.until("all but one wait", |server| Ok(server.info("blocked_clients")? == waiting))?;
        Ok(ring)
    }
}

/// The server's cost of one hand-over.
pub struct HandOver {
    pub instructions: f64,
    /// Iterations of the event loop.
    pub cycles: f64,
}

/// Counts a hand-over among this number of clients by callgrind.
pub fn count(contender: Contender, clients: usize) -> Outcome<HandOver> {
    let mut server = contender.start(Setup::new().under_callgrind())?;
    let mut ring = contender.ring(&mut server, clients)?;
    let pace = Pace::WhenServerSleeps(server.id());
    let times = u32::try_from(clients)?.max(unless_quick(2000, 400));
    let (part, times) = least_part(&mut server, times, |times| ring.hand_over(times, pace))?;
    let each = |total: u64| total as f64 / f64::from(times);
    let cycles = each(part.calls_of("epoll_wait"));
    // The release and the next acquire take one iteration each.
    if cycles < 1.99 {
        return Err(format!(
            "the server has not slept between the calls: {cycles:.2} cycles for a hand-over"
        )
        .into());
    }
    Ok(HandOver { instructions: each(part.instructions), cycles })
}

/// Counts a hand-over for the module and for the floor. Both run at the same time if the number of clients is small enough.
pub fn count_both(clients: usize) -> Outcome<(HandOver, HandOver)> {
    if clients > MAX_PARALLEL_CLIENTS {
        return Ok((count(Contender::Module, clients)?, count(Contender::Floor, clients)?));
    }
    std::thread::scope(|scope| {
        let floor = scope.spawn(|| count(Contender::Floor, clients));
        let module = count(Contender::Module, clients)?;
        Ok((module, floor.join().map_err(|_| "a thread has panicked")??))
    })
}
