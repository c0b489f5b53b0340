// SPDX-License-Identifier: MIT

//! Consistency checks of the sessions.

use std::collections::{BTreeMap, BTreeSet};

use super::number::{NumberState, NumberedHold};
use super::{EventContent, SessionKey, Sessions};
use crate::core::WaiterId;

/// The waits and holds of all sessions, for a comparison with the other parts of the core.
#[derive(Default)]
pub(in crate::core) struct OfSessions {
    /// The sessions and numbers of waits in queues.
    pub(in crate::core) queued: BTreeMap<WaiterId, (SessionKey, u64)>,
    /// The sessions and numbers of grants in flight.
    pub(in crate::core) in_flight: BTreeMap<WaiterId, (SessionKey, u64)>,
    /// Each hold with its session and number.
    pub(in crate::core) holds: Vec<(SessionKey, u64, NumberedHold)>,
}

impl Sessions {
    /// Fails if an index disagrees with the sessions. Returns the waits and holds that the other parts of the
    /// core must know.
    pub(in crate::core) fn verify(&self) -> OfSessions {
        assert_eq!(self.by_id.len(), self.sessions.len(), "the index by id is wrong");
        let mut readers = BTreeSet::new();
        let mut all = OfSessions::default();
        for (key, session) in &self.sessions {
            assert_eq!(self.by_id.get(&session.new.id), Some(key), "{key:?} is not found by its id");
            readers.extend(session.reader.map(|reader| (reader, *key)));
            let planned = session.check_at.unwrap_or_else(|| panic!("{key:?} is never checked"));
            let counts_from = self.resumed_at.map_or(0, |at| at.saturating_add(session.patience_us()));
            let latest = session.next_check().max(counts_from);
            assert!(
                planned <= latest || session.passed.is_some(),
                "{key:?} is checked at {planned}, and should be at {latest}"
            );
            assert!(session.is_suspect || session.parked.is_empty(), "{key:?} is trusted and passed over");
            session.verify_events(*key);
            let parked: BTreeSet<WaiterId> = session.parked.keys().copied().collect();
            for (id, parked) in &session.parked {
                assert_eq!(
                    self.parked_deadlines.get(&(*key, *id)),
                    parked.wait.deadline,
                    "{id:?} never ends"
                );
            }
            for (n, state) in session.states() {
                match state {
                    NumberState::Waiting(id) if parked.contains(id) => {}
                    NumberState::Waiting(id) => {
                        all.queued.insert(*id, (*key, n));
                    }
                    NumberState::InFlight(id) => {
                        all.in_flight.insert(*id, (*key, n));
                    }
                    NumberState::Held(held) => {
                        all.holds.extend(held.holds.iter().map(|hold| (*key, n, hold.clone())));
                    }
                    NumberState::Answered(_) => {}
                }
            }
        }
        assert_eq!(self.readers, readers, "the index of readers is wrong");
        let checks: BTreeSet<_> = self.checks.iter().collect();
        let planned = self.sessions.iter().filter_map(|(key, session)| Some((session.check_at?, *key)));
        assert_eq!(checks, planned.collect(), "the calendar of checks is wrong");
        let suspects = self.sessions.values().filter(|session| session.is_suspect).count();
        assert_eq!(self.suspects, suspects, "the suspect sessions are miscounted");
        all
    }

    /// Whether this number belongs to a session that is over and has numbers left.
    pub(in crate::core) fn is_ending(&self, key: SessionKey) -> bool {
        self.ending.iter().any(|(ending, _)| *ending == key)
    }

    /// Fails if anything is left.
    pub(in crate::core) fn assert_empty(&self) {
        assert!(self.sessions.is_empty() && self.by_id.is_empty() && self.readers.is_empty());
        assert!(self.parked_deadlines.is_empty());
        assert!(self.checks.is_empty() && self.ending.is_empty() && self.unparked.is_empty());
        assert_eq!(self.suspects, 0);
    }
}

impl super::Session {
    /// Fails if an event and its number disagree.
    fn verify_events(&self, key: SessionKey) {
        let mut numbers = BTreeSet::new();
        for event in self.events() {
            assert!(numbers.insert(event.n), "{key:?} has two events about {}", event.n);
            let of_number = self.event_of(event.n);
            assert!(of_number.is_none_or(|seq| seq == event.seq), "{key:?}: another event about {}", event.n);
            let is_grant = matches!(event.content, EventContent::Granted(_) | EventContent::GrantedAll(_));
            assert_eq!(is_grant, self.in_flight(event.n).is_some(), "{key:?}: {event:?}");
        }
        for (n, _) in self.states() {
            assert!(self.event_of(n).is_none_or(|_| numbers.contains(&n)), "{key:?}: {n} has no event");
        }
    }
}
