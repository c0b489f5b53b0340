// SPDX-License-Identifier: MIT

//! Waits-for graphs with thousands of waits, for the benchmark `stalls`. Measures the cost of another wait, of `LOCK.BLOCKERS`,
//! and of connections and sessions that close.

use std::net::TcpStream;

use super::caller::Caller;
use super::samples::Samples;
use super::server::Server;
use super::session::SessionClient;
use super::{packed, unless_quick, Outcome};

/// Measures the stall of an action, in microseconds.
type Stall = dyn Fn(&mut Server, &mut dyn FnMut(&mut Server) -> Outcome<()>) -> Outcome<f64>;

/// The stall of each round, in microseconds.
#[derive(Default)]
pub struct CrowdedWaits {
    pub another_wait: Samples,
    pub holders: Samples,
    pub blockers: Samples,
    pub one_name: Samples,
    pub bundles: Samples,
}

impl CrowdedWaits {
    pub fn rows(&self) -> [(&'static str, &Samples); 5] {
        [
            ("one more wait behind 5,000 owners that wait twice", &self.another_wait),
            ("a wait for 40,000 holders that all wait", &self.holders),
            ("LOCK.BLOCKERS with 40,000 waits", &self.blockers),
            ("40,000 waits of one name end with 4 sessions", &self.one_name),
            ("400 calls for 64 locks end with their connections", &self.bundles),
        ]
    }

    pub fn measure(&mut self, stall: &Stall) -> Outcome<()> {
        self.measure_crossing(stall)?;
        self.measure_holders(stall)?;
        self.measure_closing(stall)
    }

    /// 5,000 owners wait for A and then for B. Meanwhile another owner begins and cancels a wait repeatedly.
    fn measure_crossing(&mut self, stall: &Stall) -> Outcome<()> {
        let owners = unless_quick(5_000, 500);
        let mut server = Server::start()?;
        let mut caller = Caller::connect(&server)?;
        caller
            .pipeline(["A", "B"].map(|lock| format!("LOCK.ACQUIRE {lock} holder PX 600000")).into_iter())?;
        let mut session = SessionClient::open(&server)?;
        for lock in ["A", "B"] {
            queue_all(&mut session, lock, (0..owners).map(|n| format!("o{n}")))?;
        }
        caller.call("LOCK.ACQUIRE C last PX 600000")?;
        queue(&mut session, "C", "behind")?;
        queue(&mut session, "A", "last")?;
        self.another_wait.0.push(stall(&mut server, &mut |_| {
            (0..50).try_for_each(|_| {
                queue(&mut session, "B", "last")?;
                cancel_last(&mut session, "B", "last")
            })
        })?);
        Ok(())
    }

    /// Many readers of A wait for B, and another owner waits for all of them.
    fn measure_holders(&mut self, stall: &Stall) -> Outcome<()> {
        let readers = unless_quick(40_000, 1_000);
        let mut server = Server::start()?;
        let mut caller = Caller::connect(&server)?;
        caller.pipeline((0..readers).map(|n| format!("LOCK.ACQUIRE A o{n} SHARED PX 600000")))?;
        caller.call("LOCK.ACQUIRE B holder PX 600000")?;
        let mut session = SessionClient::open(&server)?;
        queue_all(&mut session, "B", (0..readers).map(|n| format!("o{n}")))?;
        caller.call("LOCK.ACQUIRE C last PX 600000")?;
        queue(&mut session, "C", "behind")?;
        self.holders.0.push(stall(&mut server, &mut |_| {
            (0..20).try_for_each(|_| {
                queue(&mut session, "A", "last")?;
                cancel_last(&mut session, "A", "last")
            })
        })?);
        queue(&mut session, "A", "last")?;
        self.blockers.0.push(stall(&mut server, &mut |_| {
            (0..5).try_for_each(|_| caller.call("LOCK.BLOCKERS last").map(drop))
        })?);
        Ok(())
    }

    /// Measures the close of sessions with many waits of one owner, and of connections with a waiting call for many locks.
    fn measure_closing(&mut self, stall: &Stall) -> Outcome<()> {
        let waits = unless_quick(10_000, 500);
        let mut server = Server::start()?;
        let mut caller = Caller::connect(&server)?;
        caller.call("LOCK.ACQUIRE A holder PX 600000")?;
        let mut sessions = Vec::new();
        for _ in 0..4 {
            let mut session = SessionClient::open(&server)?;
            queue_all(&mut session, "A", std::iter::repeat_n("one".to_owned(), waits))?;
            sessions.push(session);
        }
        self.one_name.0.push(stall(&mut server, &mut |server| {
            sessions.iter_mut().try_for_each(SessionClient::close)?;
            server.until("all waits have ended", |server| Ok(server.info("lock_waiters")? == "0"))
        })?);
        let keys: Vec<String> = (0..64).map(|n| format!("k{n}")).collect();
        caller.call("LOCK.ACQUIRE k63 holder PX 600000")?;
        let calls = unless_quick(400, 50);
        let mut waiting: Vec<TcpStream> = Vec::new();
        for n in 0..calls {
            let mut stream = server.connect()?;
            let call = packed(&format!("LOCK.MACQUIRE 64 {} o{n} BLOCK 0", keys.join(" ")));
            std::io::Write::write_all(&mut stream, &call)?;
            waiting.push(stream);
        }
        let all = calls.to_string();
        server.until("all calls wait", |server| Ok(server.info("lock_waiters")? == all))?;
        self.bundles.0.push(stall(&mut server, &mut |server| {
            waiting.clear();
            server.until("all waits have ended", |server| Ok(server.info("lock_waiters")? == "0"))
        })?);
        Ok(())
    }
}

/// Adds a wait of this owner.
fn queue(session: &mut SessionClient, lock: &str, owner: &str) -> Outcome<()> {
    queue_all(session, lock, std::iter::once(owner.to_owned()))
}

/// Adds a wait of each owner.
fn queue_all(session: &mut SessionClient, lock: &str, owners: impl Iterator<Item = String>) -> Outcome<()> {
    let calls: Vec<String> = owners.map(|owner| session.queue(lock, &owner, "")).collect();
    session.calls.pipeline(calls.into_iter())
}

/// Cancels the last wait.
fn cancel_last(session: &mut SessionClient, lock: &str, owner: &str) -> Outcome<()> {
    let call = format!("LOCK.CANCEL {lock} {owner} SESSION {} {}", session.id, session.n);
    session.calls.call(&call).map(drop)
}
