// SPDX-License-Identifier: MIT
//! Searches the histories of a scenario, breadth first, and prints what it found.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use crate::properties::{self, Breach};
use crate::scenario::{Scenario, Start};
use crate::world::{Step, World};

impl Model for Scenario {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(self);
        world.settle(self);
        for is_wanted in self.script() {
            let step = world.steps(self).into_iter().find(is_wanted);
            let Some(step) = step else { panic!("{}: the first steps do not exist", self.name) };
            world.apply(self, step);
        }
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend(world.steps(self));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.apply(self, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

type Wanted = fn(&Step) -> bool;

impl Scenario {
    /// The steps that lead to the start of the search.
    fn script(&self) -> Vec<Wanted> {
        // A session takes these five steps.
        let up: [Wanted; 5] = [
            |step| matches!(step, Step::ClientOpens(0)),
            |step| matches!(step, Step::ServerReads(_)),
            |step| matches!(step, Step::ClientReceives(_)),
            |step| matches!(step, Step::ClientSendsEvents(0)),
            |step| matches!(step, Step::ServerReads(_)),
        ];
        let acquire: [Wanted; 3] = [
            |step| matches!(step, Step::ClientCalls(0, _)),
            |step| matches!(step, Step::ServerReads(_)),
            |step| matches!(step, Step::ClientReceives(_)),
        ];
        let rival: [Wanted; 1] = [|step| matches!(step, Step::RivalAcquires)];
        let second_up: [Wanted; 5] = [
            |step| matches!(step, Step::ClientOpens(1)),
            |step| matches!(step, Step::ServerReads(_)),
            |step| matches!(step, Step::ClientReceives(_)),
            |step| matches!(step, Step::ClientSendsEvents(1)),
            |step| matches!(step, Step::ServerReads(_)),
        ];
        let hand_over: [Wanted; 1] = [|step| matches!(step, Step::ClientHandsOver(..))];
        let late_call: [Wanted; 2] =
            [|step| matches!(step, Step::ClientCalls(1, _)), |step| matches!(step, Step::ClientSeesBreak(0))];
        let acquires = |count: u8| acquire.repeat(usize::from(count));
        match self.start {
            Start::Empty => Vec::new(),
            Start::Up => up.to_vec(),
            Start::Held(count) => [up.to_vec(), acquires(count)].concat(),
            Start::HandedOver => [&up[..], &acquire, &second_up, &hand_over, &late_call].concat(),
            Start::Waiting(count) => [&up[..], &rival, &acquires(count)].concat(),
        }
    }
}

/// Where a search ends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Steps made, counted also if they lead to a known state.
    pub steps: usize,
    pub time: Duration,
}

/// The result of a search.
pub struct Outcome {
    pub states: usize,
    pub steps: usize,
    /// The length of the longest history. All shorter ones were searched.
    pub depth: usize,
    pub time: Duration,
    /// Whether every state was seen.
    pub is_complete: bool,
    pub violation: Option<(Breach, Trace)>,
}

/// A history that ends with a violation.
pub struct Trace {
    path: Path<World, Step>,
}

/// Searches the histories of `scenario` until a property is violated, all states are seen, or a limit is reached.
pub fn search(scenario: &Scenario, limits: Limits) -> Outcome {
    let started = Instant::now();
    let checker = scenario
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .target_state_count(limits.steps)
        .timeout(limits.time)
        .spawn_bfs()
        .join();
    let shortest = checker.discoveries().into_iter().min_by_key(|(_, path)| path.clone().into_vec().len());
    let violation = shortest.and_then(|(name, path)| {
        let breach = Breach::ALL.into_iter().find(|breach| breach.name() == name)?;
        Some((breach, Trace { path }))
    });
    let time = started.elapsed();
    let is_complete = violation.is_none() && checker.state_count() < limits.steps && time < limits.time;
    Outcome {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth() - 1,
        time,
        is_complete,
        violation,
    }
}

impl Trace {
    /// The number of steps.
    pub fn len(&self) -> usize {
        self.path.clone().into_vec().len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Display for Trace {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        for (number, (world, step)) in (1..).zip(self.path.clone().into_vec()) {
            if let Some(step) = step {
                writeln!(text, "{number:3} {}", world.describe(step))?;
            }
        }
        formatter.write_str(&text)
    }
}

impl World {
    /// Describes a step with the call or reply that it moves.
    fn describe(&self, step: Step) -> String {
        let connection = |index: usize| {
            let connection = &self.network.connections[index];
            let side = if connection.open_at_client { "" } else { ", closed by the client" };
            format!("{:?} of client {}{side}", connection.purpose, connection.client)
        };
        match step {
            Step::ServerReads(index) => {
                format!("ServerReads {:?} ({})", self.network.connections[index].call, connection(index))
            }
            Step::ClientReceives(index) => {
                format!("ClientReceives {:?} ({})", self.network.connections[index].reply, connection(index))
            }
            Step::ClientSeesBreak(index)
            | Step::ServerSeesBreak(index)
            | Step::ServerSeesEnd(index)
            | Step::BlockingEnds(index) => format!("{step:?} ({})", connection(index)),
            Step::ClientSendsEvents(index) => {
                let client = &self.clients[usize::from(index)];
                format!("{step:?} beat {} seen {} done {}", client.beat + 1, client.seen, client.done())
            }
            _ => format!("{step:?}"),
        }
    }
}
