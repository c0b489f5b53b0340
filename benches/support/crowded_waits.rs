// SPDX-License-Identifier: MIT

//! Waits-for graphs with thousands of waits, for the benchmark `stalls`. Measures the cost of another wait, of `LOCK.BLOCKERS`,
//! and of connections that close.

use std::net::TcpStream;

use super::caller::Caller;
use super::samples::Samples;
use super::server::Server;
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
            ("40,000 waits of one name end with 4 connections", &self.one_name),
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
        caller.call("CONFIG SET lock.max-notify 100000")?;
        let _inbox = inbox(&server)?;
        for lock in ["A", "B"] {
            caller.pipeline((0..owners).map(|n| notify(lock, &format!("o{n}"), &format!("{lock}{n}"))))?;
        }
        caller.call("LOCK.ACQUIRE C last PX 600000")?;
        caller.call(&notify("C", "behind", "first"))?;
        caller.call(&notify("A", "last", "first"))?;
        self.another_wait.0.push(stall(&mut server, &mut |_| {
            for n in 0..50 {
                caller.call(&notify("B", "last", &format!("again:{n}")))?;
                caller.call(&format!("LOCK.CANCEL B last ID again:{n}"))?;
            }
            Ok(())
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
        let _inbox = inbox(&server)?;
        // A connection may have 10,000 waits.
        let mut waiting = Vec::new();
        for from in (0..readers).step_by(10_000) {
            let mut connection = Caller::connect(&server)?;
            let some = from..readers.min(from + 10_000);
            connection.pipeline(some.map(|n| notify("B", &format!("o{n}"), &format!("{n}"))))?;
            waiting.push(connection);
        }
        caller.call("LOCK.ACQUIRE C last PX 600000")?;
        caller.call(&notify("C", "behind", "first"))?;
        self.holders.0.push(stall(&mut server, &mut |_| {
            for n in 0..20 {
                caller.call(&notify("A", "last", &format!("again:{n}")))?;
                caller.call(&format!("LOCK.CANCEL A last ID again:{n}"))?;
            }
            Ok(())
        })?);
        caller.call(&notify("A", "last", "again"))?;
        self.blockers.0.push(stall(&mut server, &mut |_| {
            (0..5).try_for_each(|_| caller.call("LOCK.BLOCKERS last").map(drop))
        })?);
        Ok(())
    }

    /// Measures the close of connections with many waiting calls of one owner, or with a waiting call for many locks.
    fn measure_closing(&mut self, stall: &Stall) -> Outcome<()> {
        let waits = unless_quick(10_000, 500);
        let mut server = Server::start()?;
        let mut caller = Caller::connect(&server)?;
        caller.call("LOCK.ACQUIRE A holder PX 600000")?;
        let _inbox = inbox(&server)?;
        let mut closing = Vec::new();
        for connection in 0..4 {
            let mut waiting = Caller::connect(&server)?;
            waiting.pipeline((0..waits).map(|n| notify("A", "one", &format!("{connection}:{n}"))))?;
            closing.push(waiting);
        }
        self.one_name.0.push(stall(&mut server, &mut |server| {
            closing.clear();
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

fn notify(lock: &str, owner: &str, id: &str) -> String {
    format!("LOCK.ACQUIRE {lock} {owner} NOTIFY inbox ID {id}")
}

/// Subscribes to the inbox of the waits. Without a subscriber, the server would drop the waits.
fn inbox(server: &Server) -> Outcome<Caller> {
    let mut inbox = Caller::connect(server)?;
    inbox.call("SUBSCRIBE lock:inbox:inbox")?;
    Ok(inbox)
}
