// SPDX-License-Identifier: MIT
//! The choices of a client: which calls it sends, and when it stops.

use crate::calls::{Call, HandOver, HoldKind, Number, SessionId};
use crate::client::{Acquire, Client, Phase, Progress};
use crate::network::Purpose;
use crate::rules::Rule;
use crate::scenario::Scenario;
use crate::world::{Step, World};

impl Client {
    pub fn steps(&self, scenario: &Scenario, world: &World, index: u8, steps: &mut Vec<Step>) {
        let reader = world.network.reader(index);
        match self.phase {
            Phase::Closed => return,
            Phase::Down => steps.push(Step::ClientOpens(index)),
            Phase::Up if reader.is_some_and(|reader| reader.awaited.is_none() && reader.open_at_server) => {
                steps.push(Step::ClientSendsEvents(index));
            }
            _ => {}
        }
        if world.budgets.forks > 0 && self.phase == Phase::Up {
            steps.push(Step::ClientForks(index));
        }
        if self.has_outlived_ttl() {
            steps.push(Step::ClientLosesHolds(index));
        }
        for (position, acquire) in self.acquires.iter().enumerate() {
            if let Some(call) = self.next_call(scenario, world, index, position) {
                steps.push(Step::ClientCalls(index, call));
            }
            self.stopping_steps(scenario, world, index, acquire, steps);
        }
        let holds = self.acquires.iter().any(|acquire| acquire.progress == Progress::Held);
        if world.budgets.closes > 0 && self.id.is_some() && !holds {
            steps.push(Step::ClientCloses(index));
        }
    }

    fn has_outlived_ttl(&self) -> bool {
        let is_hold = |acquire: &Acquire| {
            acquire.progress == Progress::Held && acquire.request.kind == HoldKind::SessionBound
        };
        self.ttl_left == 0 && self.acquires.iter().any(is_hold)
    }

    /// The call that acquire `position` needs next, unless a reply about it is awaited.
    fn next_call(&self, scenario: &Scenario, world: &World, index: u8, position: usize) -> Option<Call> {
        let acquire = &self.acquires[position];
        let id = self.id?;
        if world.network.awaits(index, acquire.n) {
            return None;
        }
        let (n, request) = (acquire.n, acquire.request);
        let is_up = self.phase == Phase::Up;
        if acquire.declares {
            return (self.phase == Phase::Declaring).then_some(Call::Renew { id, n, request });
        }
        match acquire.progress {
            Progress::Todo => {
                let is_next = !self.acquires[..position].iter().any(|other| other.progress == Progress::Todo);
                (is_up && is_next).then(|| acquire_call(acquire, id))
            }
            Progress::Asking if acquire.in_doubt => is_up.then_some(Call::Renew { id, n, request }),
            Progress::Asking => is_up.then(|| acquire_call(acquire, id)),
            Progress::Releasing => {
                let early = matches!(self.phase, Phase::Declaring | Phase::Opening)
                    && !scenario.rules.has(Rule::ReleaseByNumber);
                (is_up || early).then_some(Call::Release { id, n })
            }
            Progress::Cancelling => is_up.then_some(Call::Cancel { id, n }),
            _ => None,
        }
    }

    fn stopping_steps(
        &self,
        scenario: &Scenario,
        world: &World,
        index: u8,
        acquire: &Acquire,
        steps: &mut Vec<Step>,
    ) {
        let n = acquire.n;
        let forgets = !scenario.rules.has(Rule::RepeatCancel) && !world.network.awaits(index, n);
        match acquire.progress {
            Progress::Held if !acquire.declares => {
                steps.push(Step::ClientStopsUsing(index, n));
                if world.budgets.hand_overs > 0 && world.clients.len() > 1 {
                    steps.push(Step::ClientHandsOver(index, n));
                }
            }
            Progress::Asking | Progress::Queued if world.budgets.cancels > 0 => {
                steps.push(Step::ClientGivesUp(index, n));
            }
            Progress::Cancelling if forgets => steps.push(Step::ClientForgetsCancel(index, n)),
            _ => {}
        }
    }
}

fn acquire_call(acquire: &Acquire, id: SessionId) -> Call {
    let (n, request) = (acquire.n, acquire.request);
    match acquire.from {
        Some(from) => Call::TakeOver { id, n, request, from },
        None => Call::Acquire { id, n, request },
    }
}

impl World {
    pub(crate) fn apply_client_step(&mut self, scenario: &Scenario, step: Step) {
        match step {
            Step::ClientOpens(index) => {
                self.clients[usize::from(index)].open(scenario, &mut self.network, index);
            }
            Step::ClientSendsEvents(index) => {
                let client = &mut self.clients[usize::from(index)];
                client.beat += 1;
                if let Some(id) = client.id {
                    let call = Call::Events { id, beat: client.beat, seen: client.seen, done: client.done() };
                    self.network.send(index, Purpose::Reader, call);
                }
            }
            Step::ClientCalls(index, call) => {
                let acquire = call.number().and_then(|n| self.clients[usize::from(index)].find(n));
                if let Some(acquire) = acquire.filter(|acquire| acquire.progress == Progress::Todo) {
                    acquire.progress = Progress::Asking;
                }
                self.network.send(index, Purpose::Pool, call);
            }
            Step::ClientStopsUsing(index, n) => self.set_progress(index, n, Progress::Releasing),
            Step::ClientGivesUp(index, n) => {
                self.budgets.cancels -= 1;
                self.set_progress(index, n, Progress::Cancelling);
                let is_acquire =
                    |call: Call| call.number() == Some(n) && matches!(call, Call::Acquire { .. });
                for connection in self.network.connections.iter_mut() {
                    if connection.client == index && connection.awaited.is_some_and(is_acquire) {
                        connection.close_at_client();
                    }
                }
            }
            Step::ClientForgetsCancel(index, n) => self.set_progress(index, n, Progress::Done),
            Step::ClientLosesHolds(index) => {
                let client = &mut self.clients[usize::from(index)];
                for acquire in client.acquires.iter_mut() {
                    if acquire.progress == Progress::Held && acquire.request.kind == HoldKind::SessionBound {
                        acquire.progress = Progress::Releasing;
                        acquire.declares = false;
                    }
                }
                client.finish_declarations();
            }
            Step::ClientCloses(index) => self.close(index),
            Step::ClientForks(index) => self.fork(scenario, index),
            Step::ClientHandsOver(index, n) => self.hand_over(index, n),
            _ => {}
        }
    }

    fn set_progress(&mut self, index: u8, n: Number, progress: Progress) {
        if let Some(acquire) = self.clients[usize::from(index)].find(n) {
            acquire.progress = progress;
        }
    }

    fn close(&mut self, index: u8) {
        self.budgets.closes -= 1;
        let client = &mut self.clients[usize::from(index)];
        client.phase = Phase::Closed;
        for acquire in &mut client.acquires {
            acquire.progress = Progress::Done;
        }
        self.network.close_all_of(index);
        if let Some(id) = client.id {
            self.network.send(index, Purpose::Pool, Call::Close { id });
        }
    }

    /// The child has the parent's memory, but no connection.
    fn fork(&mut self, scenario: &Scenario, index: u8) {
        self.budgets.forks -= 1;
        let mut child = self.clients[usize::from(index)].clone();
        child.phase = Phase::Down;
        if scenario.rules.has(Rule::DropIdAfterFork) {
            child = Client::new(self.clients.len() as u8, &[]);
        }
        self.clients.push(child);
    }

    fn hand_over(&mut self, index: u8, n: Number) {
        self.budgets.hand_overs -= 1;
        let giver = &mut self.clients[usize::from(index)];
        let from = HandOver { giver: giver.identity, number: n };
        let Some(acquire) = giver.find(n) else { return };
        acquire.progress = Progress::Lost;
        let request = acquire.request;
        let taker = &mut self.clients[1 - usize::from(index)];
        let mut taken = Acquire::new(taker.next_number, request);
        taken.from = Some(from);
        taker.next_number += 1;
        taker.acquires.push(taken);
    }
}
