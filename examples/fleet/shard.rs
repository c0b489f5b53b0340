// SPDX-License-Identifier: MIT

//! One shard after a failure that interrupts all of its sessions: calculates when each session is resumed, without a server.
//!
//! The server is one thread, which works in rounds as an event loop does. It accepts the connections of the accept queue, and
//! then executes the calls that have arrived. If the accept queue is full, the kernel drops a connection request, and the
//! client's kernel repeats it after a second.
//!
//! The clients follow `clients/spec/README.md`, with any [`Pauses`]. A client gives up an attempt that takes too long, but the
//! server still does its work.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The longest pause between two attempts: `MAX_RETRY_PAUSE`.
pub(crate) const LONGEST_PAUSE: f64 = 1.0;

/// Limit for an attempt to connect: `CALL_TIMEOUT`.
pub(crate) const CONNECT_LIMIT: f64 = 2.0;

/// Limit for a reply to a call that does not wait in the server: `REPLY_GRACE`.
pub(crate) const REPLY_LIMIT: f64 = 1.0;

/// Time between two heartbeats: `EVENTS_BLOCK`.
pub(crate) const HEARTBEAT: f64 = 1.0;

/// Time after which Linux repeats a connection request.
const REPEAT_REQUEST: f64 = 1.0;

/// A session that is not resumed in this time never is.
pub(crate) const WATCHED: f64 = 300.0;

/// Maximum number of connections that Redis accepts in a round.
const ACCEPTS: usize = 1_000;

/// The server's processor time for each action, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    pub(crate) connect: f64,
    pub(crate) open: f64,
    pub(crate) declare: f64,
    pub(crate) heartbeat: f64,
}

/// The failure, which happens at the time 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The hosts disappear. Clients notice it by a missing reply, and attempts to connect get no answer. The new primary knows
    /// no session.
    Zone,
    /// The servers' processes end. Clients notice it at once, and connections are refused. The new primary knows no session.
    Crash,
    /// All connections end, and the servers keep running. Sessions continue if they are resumed within their grace.
    Connections,
}

/// The pauses of a client before its attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    /// The first pause. Each further one is twice as long, up to [`LONGEST_PAUSE`].
    pub(crate) first: f64,
    /// Each pause is shortened by a random part of up to this share.
    pub(crate) jitter: f64,
    /// The maximum of an additional, random pause before the first attempt.
    pub(crate) extra: f64,
}

impl Pauses {
    pub(crate) const WITHOUT_JITTER: Pauses = Pauses { first: 0.05, jitter: 0.0, extra: 0.0 };
}

/// A shard and its failure. All times are in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) failure: Failure,
    /// Time from the failure until a server accepts connections.
    pub(crate) outage: f64,
    /// Clients notice closed connections at random times, up to this one.
    pub(crate) spread: f64,
    /// Time until the server's first round. Its kernel already fills the accept queue.
    pub(crate) stall: f64,
    pub(crate) sessions: usize,
    /// The number of holds of each session.
    pub(crate) holds: u32,
    pub(crate) round_trip: f64,
    /// The length of the accept queue: `tcp-backlog`, and at most `net.core.somaxconn`.
    pub(crate) backlog: usize,
    pub(crate) costs: Costs,
    pub(crate) pauses: Pauses,
    pub(crate) ttl: f64,
    pub(crate) grace: f64,
    pub(crate) lease: f64,
}

/// The result for all sessions of the shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recovery {
    /// Times from the failure until the confirming reply, in ascending order.
    pub(crate) resumed: Vec<f64>,
    /// The number of sessions that are never resumed.
    pub(crate) interrupted: usize,
    /// The largest number of connections and calls that the server had yet to process.
    pub(crate) longest_queue: usize,
    /// The number of dropped connection requests.
    pub(crate) dropped: usize,
    /// The number of attempts that a client gave up although the server was running.
    pub(crate) given_up: usize,
    /// The number of sessions that could prove nothing for a while, because the grace was over.
    pub(crate) in_jeopardy: usize,
    /// The number of sessions that are resumed too late: their holds are lost.
    pub(crate) lost: usize,
}

impl Recovery {
    /// Time from the failure until the last session is resumed.
    pub(crate) fn total(&self) -> f64 {
        let last = self.resumed.last().copied().unwrap_or(0.0);
        if self.interrupted > 0 {
            f64::INFINITY
        } else {
            last
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A client begins to connect.
    Begin,
    /// A connection request arrives at the server.
    Request,
    /// A call arrives at the server.
    Call,
    /// A client waits no longer for its reply.
    Limit,
}

/// An event about a session. It counts only if the session is still at this step.
#[derive(Clone, Copy, PartialEq)]
struct Event {
    at: f64,
    kind: Kind,
    session: usize,
    step: u32,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        let rest = |event: &Event| (event.session, event.kind, event.step);
        self.at.total_cmp(&other.at).then_with(|| rest(self).cmp(&rest(other)))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

struct Session {
    /// Send time of the last confirming heartbeat before the failure.
    confirmed: f64,
    /// End of the lease of its holds, as far as the new primary knows.
    lease_end: f64,
    /// Whether the client has the id of a session that the server knows.
    is_open: bool,
    pause: f64,
    /// Increases whenever the client sends something, or gives up.
    step: u32,
    /// Begin of the attempt, then the send time of the call.
    sent: f64,
    /// The time at which the server has bound the holds again.
    bound: f64,
    is_resumed: bool,
}

struct Simulation {
    storm: Storm,
    random: StdRng,
    sessions: Vec<Session>,
    events: BinaryHeap<Reverse<Event>>,
    accept_queue: VecDeque<Event>,
    calls: VecDeque<Event>,
    now: f64,
    recovery: Recovery,
}

/// Calculates the recovery of a shard. A seed repeats its random numbers.
pub(crate) fn recover(storm: Storm, seed: u64) -> Recovery {
    let mut simulation = Simulation {
        storm,
        random: StdRng::seed_from_u64(seed),
        sessions: Vec::new(),
        events: BinaryHeap::new(),
        accept_queue: VecDeque::new(),
        calls: VecDeque::new(),
        now: storm.stall,
        recovery: Recovery::default(),
    };
    (0..storm.sessions).for_each(|_| simulation.interrupt_session());
    while simulation.now < WATCHED && simulation.run_round() {}
    let mut recovery = simulation.recovery;
    recovery.resumed.sort_unstable_by(f64::total_cmp);
    recovery.interrupted = storm.sessions - recovery.resumed.len();
    recovery.in_jeopardy += recovery.interrupted;
    recovery.lost += recovery.interrupted;
    recovery
}

impl Simulation {
    /// Adds a session, which notices the failure and makes its first pause.
    fn interrupt_session(&mut self) {
        let Storm { failure, pauses, lease, spread, .. } = self.storm;
        // Heartbeats are spread over time, and so are renewals: a third of a lease is between them.
        let confirmed = -HEARTBEAT * self.random.random::<f64>();
        let lease_end = lease * (1.0 - self.random.random::<f64>() / 3.0);
        let noticed = match failure {
            Failure::Zone => confirmed + HEARTBEAT + REPLY_LIMIT,
            Failure::Crash | Failure::Connections => spread * self.random.random::<f64>(),
        };
        let is_open = failure == Failure::Connections;
        self.sessions.push(Session {
            confirmed,
            lease_end,
            is_open,
            pause: pauses.first,
            step: 0,
            sent: noticed,
            bound: f64::INFINITY,
            is_resumed: false,
        });
        let extra = pauses.extra * self.random.random::<f64>();
        self.pause(self.sessions.len() - 1, noticed + extra);
    }

    /// Ends the attempt of a session. The next one begins after a pause.
    fn pause(&mut self, session: usize, from: f64) {
        let shortened = 1.0 - self.storm.pauses.jitter * self.random.random::<f64>();
        let state = &mut self.sessions[session];
        let at = from + state.pause * shortened;
        state.pause = LONGEST_PAUSE.min(2.0 * state.pause);
        state.step += 1;
        let step = state.step;
        self.events.push(Reverse(Event { at, kind: Kind::Begin, session, step }));
    }

    /// Receives all that has arrived, accepts, and executes. Returns false if nothing is left to do.
    fn run_round(&mut self) -> bool {
        if self.accept_queue.is_empty() && self.calls.is_empty() {
            let Some(Reverse(next)) = self.events.peek() else { return false };
            self.now = self.now.max(next.at);
        }
        self.receive();
        let queue = self.accept_queue.len() + self.calls.len();
        self.recovery.longest_queue = self.recovery.longest_queue.max(queue);
        let calls = self.calls.len();
        for _ in 0..self.accept_queue.len().min(ACCEPTS) {
            let Some(accepted) = self.accept_queue.pop_front() else { break };
            self.work(self.storm.costs.connect);
            let at = self.now.max(accepted.at + self.storm.round_trip);
            self.events.push(Reverse(Event { at, kind: Kind::Call, ..accepted }));
        }
        for _ in 0..calls {
            if let Some(call) = self.calls.pop_front() {
                self.execute(call);
            }
        }
        true
    }

    /// Handles the events up to now.
    fn receive(&mut self) {
        while let Some(Reverse(event)) = self.events.peek().copied().filter(|event| event.0.at <= self.now) {
            self.events.pop();
            let Event { at, kind, session, step } = event;
            let is_current = self.sessions[session].step == step;
            match kind {
                Kind::Begin if is_current => self.begin(session, at),
                Kind::Request if is_current => self.request(event),
                // The server also executes calls whose client has given up.
                Kind::Call => self.calls.push_back(event),
                Kind::Limit if is_current => {
                    self.recovery.given_up += 1;
                    self.pause(session, at);
                }
                Kind::Begin | Kind::Request | Kind::Limit => {}
            }
        }
    }

    fn begin(&mut self, session: usize, at: f64) {
        let Storm { failure, outage, round_trip, .. } = self.storm;
        if at < outage {
            let refused = if failure == Failure::Zone { CONNECT_LIMIT } else { round_trip };
            return self.pause(session, at + refused);
        }
        let state = &mut self.sessions[session];
        state.sent = at;
        let (at, step) = (at + round_trip / 2.0, state.step);
        self.events.push(Reverse(Event { at, kind: Kind::Request, session, step }));
    }

    fn request(&mut self, request: Event) {
        let Event { at, session, .. } = request;
        if self.accept_queue.len() < self.storm.backlog {
            self.accept_queue.push_back(request);
            return self.send(session, at + self.storm.round_trip / 2.0);
        }
        self.recovery.dropped += 1;
        let (repeated, limit) = (at + REPEAT_REQUEST, self.sessions[session].sent + CONNECT_LIMIT);
        if repeated < limit {
            self.events.push(Reverse(Event { at: repeated, ..request }));
        } else {
            self.recovery.given_up += 1;
            self.pause(session, limit);
        }
    }

    /// The client sends a call, and waits for its reply until a limit.
    fn send(&mut self, session: usize, sent: f64) {
        let state = &mut self.sessions[session];
        state.sent = sent;
        let limit = Event { at: sent + REPLY_LIMIT, kind: Kind::Limit, session, step: state.step };
        self.events.push(Reverse(limit));
    }

    /// Executes `OPEN`, or the declarations and the confirming `LOCK.EVENTS`, which are one round trip.
    fn execute(&mut self, call: Event) {
        let Storm { costs, holds, round_trip, .. } = self.storm;
        let Event { session, step, .. } = call;
        let Session { is_open, is_resumed, .. } = self.sessions[session];
        let opens = !is_open;
        let declares = is_open && !is_resumed && self.storm.failure != Failure::Connections;
        self.work(if opens { costs.open } else { costs.heartbeat });
        self.work(if declares { f64::from(holds) * costs.declare } else { 0.0 });
        let (now, replied) = (self.now, self.now + round_trip / 2.0);
        let state = &mut self.sessions[session];
        if !opens {
            state.bound = state.bound.min(now);
        }
        if state.step != step || replied > state.sent + REPLY_LIMIT || is_resumed {
            return;
        }
        state.step += 1;
        // After `OPEN` come the declarations, and after the first heartbeat the next one, which waits in the server.
        let (at, step) = (replied + round_trip / 2.0, state.step);
        self.events.push(Reverse(Event { at, kind: Kind::Call, session, step }));
        if opens {
            state.is_open = true;
            return self.send(session, replied);
        }
        state.is_resumed = true;
        self.finish(session, replied);
    }

    /// Records a session that is resumed.
    fn finish(&mut self, session: usize, replied: f64) {
        let Storm { failure, ttl, grace, .. } = self.storm;
        let state = &self.sessions[session];
        let is_lost = match failure {
            Failure::Connections => state.bound > grace,
            Failure::Zone | Failure::Crash => state.bound > state.lease_end,
        };
        self.recovery.lost += usize::from(is_lost || replied > state.confirmed + ttl);
        self.recovery.in_jeopardy += usize::from(replied > state.confirmed + grace);
        self.recovery.resumed.push(replied);
    }

    /// Spends processor time. The heartbeats of resumed sessions take their share of it.
    fn work(&mut self, cost: f64) {
        #[allow(clippy::cast_precision_loss)] // Far below 2^53.
        let heartbeats = self.recovery.resumed.len() as f64 / HEARTBEAT * self.storm.costs.heartbeat;
        self.now += cost / (1.0 - heartbeats).max(0.01);
    }
}
