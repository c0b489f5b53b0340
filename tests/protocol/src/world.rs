// SPDX-License-Identifier: MIT
//! The state of a search and its steps: each is one action of a client, the network, the server, the rival or time.

use crate::calls::{Call, Number};
use crate::client::{Client, Phase, Progress};
use crate::lock::{Lock, Owner};
use crate::network::{Network, Purpose};
use crate::properties::Breach;
use crate::scenario::{Budgets, Replication, Restart, Scenario};
use crate::server::Server;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub server: Server,
    pub clients: Vec<Client>,
    pub network: Network,
    pub budgets: Budgets,
    pub breach: Option<Breach>,
}

/// One step. Clients and connections are named by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    ClientOpens(u8),
    ClientSendsEvents(u8),
    ClientCalls(u8, Call),
    /// The client begins a release: the hold is not safe from here on.
    ClientStopsUsing(u8, Number),
    ClientGivesUp(u8, Number),
    /// Without R11: a CANCEL is not repeated.
    ClientForgetsCancel(u8, Number),
    /// TTL is over by the client's clock.
    ClientLosesHolds(u8),
    ClientCloses(u8),
    ClientForks(u8),
    /// The client stops relying on a hold, and asks the other client to take it.
    ClientHandsOver(u8, Number),
    ClientReceives(usize),
    ClientSeesBreak(usize),
    ServerReads(usize),
    ServerSeesEnd(usize),
    ServerSeesBreak(usize),
    BlockingEnds(usize),
    TimersRun,
    ServerStalls,
    ServerResumes,
    ServerRefusesWrites,
    ServerAcceptsWrites,
    RivalAcquires,
    RivalReleases,
    ReplicaCatchesUp,
    ServerRestarts,
    Tick,
}

impl World {
    pub fn new(scenario: &Scenario) -> Self {
        let clients =
            (0..).zip(&scenario.requests).map(|(identity, requests)| Client::new(identity, requests));
        World {
            server: Server::new(scenario.clients() + scenario.budgets.forks),
            clients: clients.collect(),
            network: Network::default(),
            budgets: scenario.budgets,
            breach: None,
        }
    }

    /// All steps that are possible now, in a fixed order.
    pub fn steps(&self, scenario: &Scenario) -> Vec<Step> {
        let mut steps = Vec::with_capacity(16);
        if self.breach.is_some() || self.is_finished() {
            return steps;
        }
        for (index, client) in (0..).zip(&self.clients) {
            client.steps(scenario, self, index, &mut steps);
        }
        self.network_steps(scenario, &mut steps);
        self.server_steps(scenario, &mut steps);
        if !scenario.prompt || !has_prompt_work(&steps) {
            steps.push(Step::Tick);
        }
        steps
    }

    fn network_steps(&self, scenario: &Scenario, steps: &mut Vec<Step>) {
        let stalled = self.server.stalled;
        let may_break = self.budgets.breaks > 0;
        for (index, connection) in self.network.connections.iter().enumerate() {
            let (at_client, at_server) = (connection.open_at_client, connection.open_at_server);
            if connection.reply.is_some() && at_client {
                steps.push(Step::ClientReceives(index));
            }
            if connection.call.is_some() && at_server && !stalled {
                steps.push(Step::ServerReads(index));
            }
            let is_over = |time| !scenario.prompt || time >= scenario.blocking_time();
            if connection.blocked.is_some_and(is_over) && !stalled {
                steps.push(Step::BlockingEnds(index));
            }
            if !at_client && at_server && !stalled {
                steps.push(Step::ServerSeesEnd(index));
            }
            if at_client && (!at_server || may_break && connection.awaited.is_some()) {
                steps.push(Step::ClientSeesBreak(index));
            }
            if may_break && at_client && at_server && connection.purpose == Purpose::Reader && !stalled {
                steps.push(Step::ServerSeesBreak(index));
            }
        }
    }

    fn server_steps(&self, scenario: &Scenario, steps: &mut Vec<Step>) {
        let server = &self.server;
        if server.stalled {
            steps.push(Step::ServerResumes);
        } else {
            if server.has_due_timers(scenario) {
                steps.push(Step::TimersRun);
            }
            if self.budgets.stalls > 0 {
                steps.push(Step::ServerStalls);
            }
            if server.writable && self.budgets.refusals > 0 {
                steps.push(Step::ServerRefusesWrites);
            }
            if !server.writable {
                steps.push(Step::ServerAcceptsWrites);
            }
            let may_be_free = server.lock.is_free() || server.lock.has_expired();
            if self.budgets.rivals > 0 && may_be_free && server.grants_now() {
                steps.push(Step::RivalAcquires);
            }
            if server.lock.holder(Owner::Rival).is_some() && server.writable {
                steps.push(Step::RivalReleases);
            }
        }
        if self.budgets.restarts > 0 {
            if scenario.restart == Restart::Failover && server.replica != server.lock {
                steps.push(Step::ReplicaCatchesUp);
            }
            steps.push(Step::ServerRestarts);
        }
    }

    /// Applies `step`.
    pub fn apply(&mut self, scenario: &Scenario, step: Step) {
        match step {
            Step::ClientReceives(index) => self.receive(scenario, index),
            Step::ClientSeesBreak(index) => {
                let connection = &self.network.connections[index];
                if connection.open_at_server {
                    self.budgets.breaks -= 1;
                }
                let (client, purpose) = (connection.client, connection.purpose);
                match purpose {
                    Purpose::Reader => self.lose_reader(client),
                    Purpose::Pool => self.network.connections[index].close_at_client(),
                }
            }
            Step::ServerReads(index) => self.server.read_call(scenario, &mut self.network, index),
            Step::ServerSeesEnd(index) => {
                let connection = self.network.connections.remove(index);
                self.server.lose_connection(scenario, connection.key);
            }
            Step::ServerSeesBreak(index) => {
                self.budgets.breaks -= 1;
                self.network.connections[index].close_at_server();
                let key = self.network.connections[index].key;
                self.server.lose_connection(scenario, key);
            }
            Step::BlockingEnds(index) => {
                self.network.connections[index].answer(crate::calls::Reply::Events(Vec::new()));
            }
            Step::TimersRun => self.server.run_timers(scenario, &mut self.network),
            Step::ServerStalls => {
                self.budgets.stalls -= 1;
                self.server.stalled = true;
            }
            Step::ServerResumes => self.server.stalled = false,
            Step::ServerRefusesWrites => {
                self.budgets.refusals -= 1;
                self.server.writable = false;
            }
            Step::ServerAcceptsWrites => {
                self.server.writable = true;
                self.server.run_timers(scenario, &mut self.network);
            }
            Step::RivalAcquires => self.rival_acquires(scenario),
            Step::RivalReleases => {
                self.server.lock.holders.retain(|holder| holder.owner != Owner::Rival);
                self.server.serve_queue(scenario);
                self.server.deliver_events(scenario, &mut self.network);
            }
            Step::ReplicaCatchesUp => self.server.copy_to_replica(),
            Step::ServerRestarts => self.restart(scenario),
            Step::Tick => self.tick(scenario),
            _ => self.apply_client_step(scenario, step),
        }
        self.settle(scenario);
    }

    fn receive(&mut self, scenario: &Scenario, index: usize) {
        let connection = &mut self.network.connections[index];
        let (Some(reply), Some(call)) = (connection.reply.take(), connection.awaited.take()) else { return };
        let (client, age) = (connection.client, std::mem::take(&mut connection.age));
        if connection.purpose == Purpose::Pool {
            self.network.connections.remove(index);
        }
        let keeps_reader = self.clients[usize::from(client)].receive(scenario, call, reply, age);
        if !keeps_reader {
            self.network.close_reader(client);
        }
    }

    pub fn lose_reader(&mut self, client: u8) {
        self.network.close_reader(client);
        let client = &mut self.clients[usize::from(client)];
        if client.phase != Phase::Closed {
            client.phase = Phase::Down;
        }
    }

    fn rival_acquires(&mut self, scenario: &Scenario) {
        self.server.expire_leases();
        self.server.serve_queue(scenario);
        if self.server.lock.is_free() {
            self.budgets.rivals -= 1;
            self.server.lock.add_rival();
        }
        self.server.deliver_events(scenario, &mut self.network);
    }

    fn restart(&mut self, scenario: &Scenario) {
        self.budgets.restarts -= 1;
        let (lock, quarantine) = match scenario.restart {
            Restart::WithData => (self.server.lock.clone(), 0),
            Restart::WithoutData => (Lock::default(), scenario.quarantine),
            Restart::Failover => (self.server.replica.clone(), 0),
        };
        self.server.restart(lock, quarantine);
        for connection in &mut self.network.connections {
            let is_kept = scenario.proxy && connection.call.is_some();
            if !is_kept {
                connection.close_at_server();
            }
        }
    }

    fn tick(&mut self, scenario: &Scenario) {
        if !self.server.stalled {
            self.server.run_timers(scenario, &mut self.network);
        }
        self.server.tick(scenario);
        self.server.deliver_events(scenario, &mut self.network);
        for client in &mut self.clients {
            client.tick();
        }
        self.network.tick(scenario.ttl + 1, scenario.prompt);
    }

    /// Replicates, brings the state into its normal form, and looks for a violation.
    pub fn settle(&mut self, scenario: &Scenario) {
        let holds = |lock: &Lock| -> Vec<(Owner, usize)> {
            lock.holders.iter().map(|holder| (holder.owner, holder.holds.len())).collect()
        };
        let copies_now = match scenario.replication {
            Replication::LagsFreely => false,
            Replication::HasGrants | Replication::LagsAtMost(_) => {
                holds(&self.server.replica) != holds(&self.server.lock)
            }
            Replication::Complete => true,
        };
        if copies_now {
            self.server.copy_to_replica();
        }
        self.normalize();
        self.breach = self.breach.or_else(|| crate::properties::find_breach(scenario, self));
    }

    /// Whether every acquire is over, and nothing of it is left on the server or under way.
    fn is_finished(&self) -> bool {
        let is_idle = |call: Call| matches!(call, Call::Events { .. } | Call::Close { .. });
        let may_act = |progress| !matches!(progress, Progress::Done | Progress::Lost);
        !self.clients.iter().any(|client| client.acquires.iter().any(|acquire| may_act(acquire.progress)))
            && self.server.bindings.is_empty()
            && self.server.queue.is_empty()
            && self.server.lock.holders.iter().all(|holder| holder.owner == Owner::Rival)
            && self.network.connections.iter().filter_map(|connection| connection.call).all(is_idle)
            && self.budgets.forks == 0
            && self.clients.len() == 1
    }
}

/// In a prompt scenario, time passes only when nothing else can happen, except for free choices.
fn has_prompt_work(steps: &[Step]) -> bool {
    let is_free_choice =
        |step: &Step| matches!(step, Step::ClientStopsUsing(..) | Step::RivalAcquires | Step::RivalReleases);
    !steps.iter().all(is_free_choice)
}
