// SPDX-License-Identifier: MIT
//! A client: one reader, one process, and a few acquires that it makes, uses and releases.

use crate::calls::{Call, Event, HandOver, HoldKind, Number, Outcome, Reply, Request, SessionId, Ticks};
use crate::network::Network;
use crate::properties::Breach;
use crate::rules::Rule;
use crate::scenario::Scenario;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No reader, or a reader without a session.
    Down,
    /// OPEN is under way.
    Opening,
    /// A new session: holds of the former one are being declared.
    Declaring,
    Up,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    Todo,
    Asking,
    /// The reply was 0: the grant will come as an event.
    Queued,
    Held,
    Releasing,
    Cancelling,
    Done,
    Lost,
}

/// An acquire of the client, from the first call to its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    pub n: Number,
    pub request: Request,
    pub progress: Progress,
    /// The session of the acquire or of the declaration.
    pub session: Option<SessionId>,
    /// A declaration is due.
    pub declares: bool,
    /// The acquire has no answer and was sent in a former session: a declaration tells whether it was granted.
    pub in_doubt: bool,
    /// The remaining lease of a plain hold, counted from the send time of the acquire.
    pub lease_left: Ticks,
    /// The acquire is a hand-over.
    pub from: Option<HandOver>,
}

impl Acquire {
    pub fn new(n: Number, request: Request) -> Self {
        Acquire {
            n,
            request,
            progress: Progress::Todo,
            session: None,
            declares: false,
            in_doubt: false,
            lease_left: 0,
            from: None,
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.progress, Progress::Done | Progress::Lost)
    }

    fn has_no_answer(&self) -> bool {
        use Progress::*;
        matches!(self.progress, Todo | Asking | Queued | Cancelling)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The client named in its session ids. A forked child keeps its parent's identity.
    pub identity: u8,
    pub id: Option<SessionId>,
    pub phase: Phase,
    pub beat: u8,
    /// The last event that was handled.
    pub seen: u8,
    /// The remaining time for which the last confirming EVENTS proves the holds.
    pub safe_left: Ticks,
    /// Whether an EVENTS has confirmed holds in this session; recorded in prompt scenarios only.
    pub has_confirmed: bool,
    /// The remaining time, by the client's clock, until its holds are lost for good.
    pub ttl_left: Ticks,
    pub next_number: Number,
    pub acquires: Vec<Acquire>,
    pub breach: Option<Breach>,
}

impl Client {
    pub fn new(identity: u8, requests: &[Request]) -> Self {
        let acquires: Vec<Acquire> =
            (1..).zip(requests).map(|(n, request)| Acquire::new(n, *request)).collect();
        Client {
            identity,
            id: None,
            phase: Phase::Down,
            beat: 0,
            seen: 0,
            safe_left: 0,
            has_confirmed: false,
            ttl_left: 0,
            next_number: acquires.len() as Number + 1,
            acquires,
            breach: None,
        }
    }

    /// Returns the first number whose acquire has no answer yet. All smaller numbers have theirs.
    pub fn done(&self) -> Number {
        let open = self.acquires.iter().filter(|acquire| acquire.has_no_answer());
        open.map(|acquire| acquire.n).min().unwrap_or(self.next_number)
    }

    /// Whether the client may rely on this hold.
    pub fn is_safe(&self, scenario: &Scenario, acquire: &Acquire) -> bool {
        if acquire.progress != Progress::Held {
            return false;
        }
        match acquire.request.kind {
            HoldKind::Plain => acquire.lease_left > 0,
            HoldKind::SessionBound => {
                let is_present = acquire.session == self.id || !scenario.rules.has(Rule::DeclareBeforeEvents);
                is_present && self.safe_left > 0
            }
        }
    }

    pub fn find(&mut self, n: Number) -> Option<&mut Acquire> {
        self.acquires.iter_mut().find(|acquire| acquire.n == n)
    }

    pub fn drop_session(&mut self) {
        self.id = None;
        self.phase = Phase::Down;
        self.beat = 0;
        self.seen = 0;
    }

    /// Ends every acquire: the process gives up.
    pub fn end(&mut self) {
        self.phase = Phase::Closed;
        for acquire in self.acquires.iter_mut().filter(|acquire| acquire.progress != Progress::Done) {
            acquire.progress = Progress::Lost;
        }
    }

    /// Leaves `Declaring` once every hold has been declared or lost.
    pub fn finish_declarations(&mut self) {
        if self.phase == Phase::Declaring && !self.acquires.iter().any(|acquire| acquire.declares) {
            self.phase = Phase::Up;
            for acquire in self.acquires.iter_mut().filter(|acquire| acquire.progress == Progress::Queued) {
                acquire.progress = Progress::Asking;
            }
        }
    }

    /// Repeats an acquire with a new number, because its wait was lost.
    fn ask_again(&mut self, scenario: &Scenario, n: Number) {
        let number = self.next_number;
        let Some(acquire) = self.find(n) else { return };
        acquire.progress = Progress::Asking;
        if !scenario.rules.has(Rule::ReplyOutcome) {
            return;
        }
        if number > scenario.last_number {
            acquire.progress = Progress::Lost;
            return;
        }
        acquire.n = number;
        self.next_number += 1;
        self.acquires.sort_by_key(|acquire| acquire.n);
    }

    /// Handles the reply to `call`, which was sent `age` ticks ago. Returns whether the reader stays open.
    pub fn receive(&mut self, scenario: &Scenario, call: Call, reply: Reply, age: Ticks) -> bool {
        if self.phase == Phase::Closed {
            return true;
        }
        match (call, reply) {
            (Call::OpenNew { .. } | Call::Open { .. }, Reply::Opened { id, new, beat }) => {
                self.opened(scenario, id, new, beat, age);
            }
            (Call::OpenNew { .. }, _) => {
                self.end();
                return false;
            }
            (Call::Open { .. } | Call::Events { .. }, Reply::NoSession) => {
                self.drop_session();
                return false;
            }
            (Call::Open { .. } | Call::Events { .. }, Reply::Late) => {
                self.breach.get_or_insert(Breach::NewestCallLate);
                self.drop_session();
                return false;
            }
            (Call::Events { .. }, Reply::Events(events)) => {
                self.ttl_left = scenario.ttl.saturating_sub(age);
                let is_full = events.len() >= scenario.event_count();
                for event in events {
                    self.handle_event(scenario, event);
                }
                if !is_full || !scenario.rules.has(Rule::FullAnswerConfirmsNothing) {
                    self.safe_left = scenario.proven_for().saturating_sub(age);
                    self.has_confirmed = scenario.prompt;
                }
            }
            (Call::Acquire { id, n, .. } | Call::TakeOver { id, n, .. }, reply) => {
                self.answered(scenario, id, n, reply, age);
            }
            (Call::Release { id, n } | Call::Cancel { id, n }, reply) => {
                self.released(scenario, id, n, reply)
            }
            (Call::Renew { id, n, .. }, reply) if Some(id) == self.id => self.declared(scenario, n, reply),
            _ => {}
        }
        true
    }

    fn opened(&mut self, scenario: &Scenario, id: SessionId, new: bool, beat: u8, age: Ticks) {
        self.id = Some(id);
        self.ttl_left = scenario.ttl.saturating_sub(age);
        if !scenario.rules.has(Rule::OneCounter) {
            self.beat = beat;
        } else if new {
            self.beat = 1;
        }
        if new {
            self.seen = 0;
            self.phase = Phase::Declaring;
            for acquire in &mut self.acquires {
                let declares = match acquire.request.kind {
                    HoldKind::SessionBound => true,
                    HoldKind::Plain => scenario.rules.has(Rule::DeclarePlainHolds),
                };
                acquire.declares = acquire.progress == Progress::Held && declares;
                let has_no_answer = matches!(acquire.progress, Progress::Asking | Progress::Queued);
                acquire.in_doubt = has_no_answer && scenario.rules.has(Rule::DeclareUnanswered);
            }
            self.finish_declarations();
            return;
        }
        let declares = self.acquires.iter().any(|acquire| acquire.declares);
        self.phase = if declares && scenario.rules.has(Rule::DeclareBeforeEvents) {
            Phase::Declaring
        } else {
            Phase::Up
        };
        if !scenario.rules.has(Rule::OnlyEventsConfirm) {
            self.safe_left = scenario.proven_for().saturating_sub(age);
        }
    }

    fn handle_event(&mut self, scenario: &Scenario, event: Event) {
        self.seen = event.seq;
        let id = self.id;
        let Some(acquire) = self.find(event.n) else { return };
        match (event.outcome, acquire.progress) {
            (Outcome::Granted, Progress::Asking | Progress::Queued) => {
                acquire.progress = Progress::Held;
                acquire.session = id;
            }
            (Outcome::Granted, Progress::Done) => acquire.progress = Progress::Releasing,
            (Outcome::Lost, Progress::Held) => acquire.progress = Progress::Lost,
            (Outcome::Lost, Progress::Queued | Progress::Asking) => self.ask_again(scenario, event.n),
            _ => {}
        }
    }

    fn answered(&mut self, scenario: &Scenario, id: SessionId, n: Number, reply: Reply, age: Ticks) {
        let is_former = Some(id) != self.id;
        let present = self.id;
        let Some(acquire) = self.find(n) else { return };
        if acquire.progress != Progress::Asking || is_former && scenario.rules.has(Rule::CheckIdOfReply) {
            return;
        }
        match reply {
            Reply::Count(0) => acquire.progress = Progress::Queued,
            Reply::Count(_) => {
                acquire.progress = Progress::Held;
                acquire.session = present;
                acquire.lease_left = scenario.plain_lease(acquire.request.kind).saturating_sub(age);
            }
            Reply::Nil | Reply::Cancelled => acquire.progress = Progress::Done,
            Reply::NotOwner if acquire.from.is_some() => acquire.progress = Progress::Lost,
            Reply::NotOwner => self.ask_again(scenario, n),
            Reply::Late => {
                self.breach.get_or_insert(Breach::AwaitedAcquireLate);
            }
            _ => {}
        }
    }

    fn released(&mut self, scenario: &Scenario, id: SessionId, n: Number, reply: Reply) {
        let is_former = Some(id) != self.id && scenario.rules.has(Rule::CheckIdOfReply);
        let Some(acquire) = self.find(n) else { return };
        let is_pending = matches!(acquire.progress, Progress::Releasing | Progress::Cancelling);
        let is_answer = match reply {
            Reply::NoSession | Reply::Error => false,
            Reply::Count(count) => count > 0 || !is_former,
            _ => !is_former,
        };
        if is_pending && is_answer {
            acquire.progress = Progress::Done;
        }
    }

    fn declared(&mut self, scenario: &Scenario, n: Number, reply: Reply) {
        let present = self.id;
        let Some(acquire) = self.find(n) else { return };
        let is_refused = matches!(reply, Reply::NotOwner | Reply::Late);
        if acquire.in_doubt {
            if matches!(reply, Reply::Count(_)) {
                acquire.in_doubt = false;
                if acquire.progress == Progress::Asking {
                    acquire.progress = Progress::Held;
                    acquire.session = present;
                }
            } else if is_refused {
                acquire.in_doubt = false;
            }
        } else if let Reply::Count(count) = reply {
            acquire.declares = false;
            acquire.session = present;
            if scenario.rules.has(Rule::CompareCounts) {
                self.compare_count(scenario, n, count);
            }
        } else if is_refused {
            acquire.declares = false;
            if acquire.progress == Progress::Held {
                acquire.progress = Progress::Lost;
            }
        }
        self.finish_declarations();
    }

    /// Loses all holds of the owner of `n` if the server has fewer: nobody can tell which of them are left.
    fn compare_count(&mut self, scenario: &Scenario, n: Number, count: u8) {
        let ended =
            if scenario.rules.has(Rule::ReleaseAfterLowCount) { Progress::Releasing } else { Progress::Lost };
        let owner = scenario.owner(self.identity, n);
        let identity = self.identity;
        let is_hold = |acquire: &&mut Acquire| {
            acquire.progress == Progress::Held && scenario.owner(identity, acquire.n) == owner
        };
        let holds: Vec<&mut Acquire> = self.acquires.iter_mut().filter(is_hold).collect();
        if holds.len() > usize::from(count) {
            for hold in holds {
                hold.progress = ended;
                hold.declares = false;
            }
        }
    }

    /// Sends OPEN, after closing the former reader.
    pub fn open(&mut self, scenario: &Scenario, network: &mut Network, index: u8) {
        use crate::network::Purpose;
        network.close_reader(index);
        self.phase = Phase::Opening;
        let call = match self.id {
            None => Call::OpenNew { client: self.identity },
            Some(id) => {
                if scenario.rules.has(Rule::OneCounter) {
                    self.beat += 1;
                }
                Call::Open { id, beat: self.beat }
            }
        };
        network.send(index, Purpose::Reader, call);
    }

    pub fn tick(&mut self) {
        self.safe_left = self.safe_left.saturating_sub(1);
        self.ttl_left = self.ttl_left.saturating_sub(1);
        for acquire in &mut self.acquires {
            acquire.lease_left = acquire.lease_left.saturating_sub(1);
        }
    }
}
