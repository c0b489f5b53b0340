// SPDX-License-Identifier: MIT

//! One thread for everything that has its time.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{left, now, Moment};
use crate::mailbox::locked;

/// What is done at its time. It is told how late it is.
pub(crate) type Task = Box<dyn FnOnce(Duration) + Send>;

/// By what a task can be forgotten.
pub(crate) type Place = (Moment, u64);

#[derive(Default)]
pub(crate) struct Timer {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

#[derive(Default)]
struct Tasks {
    /// By time, and in the order in which they came.
    due: BTreeMap<Place, Task>,
    count: u64,
    closed: bool,
}

impl Timer {
    /// Does it then. After the end, the task is given back.
    pub(crate) fn at(&self, time: Moment, task: Task) -> std::result::Result<Place, Task> {
        let mut tasks = locked(&self.tasks);
        if tasks.closed {
            return Err(task);
        }
        tasks.count += 1;
        let place = (time, tasks.count);
        tasks.due.insert(place, task);
        if tasks.due.keys().next() == Some(&place) {
            self.changed.notify_all();
        }
        Ok(place)
    }

    /// Does it not, if it is still to be done.
    pub(crate) fn forget(&self, place: Place) {
        let task = locked(&self.tasks).due.remove(&place);
        // What it refers to goes when the lock is free.
        drop(task);
    }

    /// How much is to be done.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        locked(&self.tasks).due.len()
    }

    /// Runs until [`Timer::close`].
    pub(crate) fn run(&self) {
        let mut tasks = locked(&self.tasks);
        while !tasks.closed {
            let next = tasks.due.keys().next().map_or(Duration::MAX, |(time, _)| *time);
            let until = left(next);
            if !until.is_zero() {
                tasks = self.changed.wait_timeout(tasks, until).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let task = tasks.due.pop_first();
            drop(tasks);
            if let Some(((time, _), task)) = task {
                task(now().saturating_sub(time));
            }
            tasks = locked(&self.tasks);
        }
    }

    /// Ends it. What is left is done now, in a session that is closed.
    pub(crate) fn close(&self) {
        let mut tasks = locked(&self.tasks);
        tasks.closed = true;
        let due = std::mem::take(&mut tasks.due);
        drop(tasks);
        self.changed.notify_all();
        due.into_values().for_each(|task| task(Duration::ZERO));
    }
}
