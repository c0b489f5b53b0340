// SPDX-License-Identifier: MIT

//! The shared holders of one lock: either a short list, as read from the key, or a crowd that stays in memory
//! between calls.
//!
//! A list is searched linearly for an owner's hold, the newest token, or the first and last end of a lease. A
//! crowd answers these queries in O(log n). It also records the changes of a step, so that only these are
//! written.

use std::collections::BTreeSet;
use std::rc::Rc;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::spare::is_too_large;
use super::{Hold, Owner, Token, WallMs};

/// Shared holds by owner. Two values are equal if they have the same holds, in either form.
#[derive(Clone, Debug)]
pub(crate) enum Readers {
    /// The holds as read for the current step, ordered by owner.
    Few(SmallVec<[Hold; 1]>),
    /// Holds with an index of lease ends and a list of the current step's changes. Cheap to clone until one
    /// copy changes.
    Many(Rc<Crowd>),
}

/// The readers of one lock, each with its own field in the lock's hash.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    /// The holds of all fields, including those whose lease has expired. Each hold stays at its index; some
    /// entries are empty.
    places: Vec<Option<Hold>>,
    /// Indices of the empty entries of `places`.
    empty: Vec<usize>,
    /// Index in `places` of each owner's hold.
    by_owner: HashMap<Owner, usize>,
    /// Lease ends with the index of the hold.
    ends: BTreeSet<(WallMs, usize)>,
    /// Fencing tokens with the index of the hold.
    tokens: BTreeSet<(Token, usize)>,
    /// Time at which leases are judged to have expired or not.
    now: WallMs,
    /// Number of leases that ended before `now`.
    expired: usize,
    /// Owners changed by the current step, in order of the changes. An owner may appear more than once.
    touched: Vec<ChangedHold>,
    /// Whether the crowd was kept from an earlier step, so that the current step did not read it.
    kept: bool,
}

/// An owner whose hold a step has changed, with the hold before that change.
#[derive(Clone, Debug)]
pub(crate) struct ChangedHold {
    pub(crate) owner: Owner,
    pub(crate) before: Option<Hold>,
}

impl Readers {
    /// Builds the value from holds as they were read.
    pub(super) fn few(holds: impl IntoIterator<Item = Hold>) -> Readers {
        let mut holds: SmallVec<[Hold; 1]> = holds.into_iter().collect();
        holds.sort_unstable_by(|a, b| a.owner.cmp(&b.owner));
        Readers::Few(holds)
    }

    /// Number of holders.
    pub(super) fn len(&self) -> usize {
        match self {
            Readers::Few(holds) => holds.len(),
            Readers::Many(crowd) => crowd.len(),
        }
    }

    /// Iterates over the holds. A short list is in the order of the owners.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Hold> {
        let (few, many) = match self {
            Readers::Few(holds) => (Some(holds.iter()), None),
            Readers::Many(crowd) => (None, Some(crowd.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    /// Iterates over at most two holds.
    pub(super) fn two(&self) -> impl Iterator<Item = &Hold> {
        let (few, many) = match self {
            Readers::Few(holds) => (Some(holds.iter().take(2)), None),
            Readers::Many(crowd) => (None, Some(crowd.by_end().take(2))),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    pub(super) fn get(&self, owner: &[u8]) -> Option<&Hold> {
        match self {
            Readers::Few(holds) => Some(&holds[position(holds, owner).ok()?]),
            Readers::Many(crowd) => crowd.get(owner),
        }
    }

    pub(super) fn contains_key(&self, owner: &Owner) -> bool {
        self.get(owner.as_bytes()).is_some()
    }

    /// Applies `what` to the hold of this owner, if it has one.
    pub(super) fn change<T>(&mut self, owner: &[u8], what: impl FnOnce(&mut Hold) -> T) -> Option<T> {
        match self {
            Readers::Few(holds) => position(holds, owner).ok().map(|at| what(&mut holds[at])),
            Readers::Many(crowd) => Rc::make_mut(crowd).change(owner, what),
        }
    }

    pub(super) fn insert(&mut self, hold: Hold) {
        match self {
            Readers::Few(holds) => match position(holds, hold.owner.as_bytes()) {
                Ok(at) => holds[at] = hold,
                Err(at) => holds.insert(at, hold),
            },
            Readers::Many(crowd) => Rc::make_mut(crowd).insert(hold),
        }
    }

    pub(super) fn remove(&mut self, owner: &[u8]) {
        match self {
            Readers::Few(holds) => {
                let at = position(holds, owner);
                at.ok().map(|at| holds.remove(at));
            }
            Readers::Many(crowd) => Rc::make_mut(crowd).remove(owner),
        }
    }

    /// End of the last lease.
    pub(super) fn last_end(&self) -> Option<WallMs> {
        match self {
            Readers::Few(holds) => holds.iter().map(|hold| hold.expires_at).max(),
            Readers::Many(crowd) => crowd.last_end(),
        }
    }

    /// End of the first lease.
    pub(super) fn first_end(&self) -> Option<WallMs> {
        match self {
            Readers::Few(holds) => holds.iter().map(|hold| hold.expires_at).min(),
            Readers::Many(crowd) => crowd.first_end(),
        }
    }

    /// Number of holds that the current step had to read.
    pub(super) fn read_len(&self) -> usize {
        match self {
            Readers::Many(crowd) if crowd.kept => 0,
            readers => readers.len(),
        }
    }

    /// The newest token of the holders.
    pub(super) fn token(&self) -> Option<Token> {
        match self {
            Readers::Few(holds) => holds.iter().filter_map(|hold| hold.token).max(),
            Readers::Many(crowd) => crowd.token(),
        }
    }

    /// Ends the holds whose lease has expired.
    pub(super) fn end_leases(&mut self, now: WallMs) {
        match self {
            Readers::Few(holds) => holds.retain(|hold| hold.expires_at >= now),
            Readers::Many(crowd) if crowd.now == now => {}
            Readers::Many(crowd) => Rc::make_mut(crowd).set_now(now),
        }
    }

    #[cfg(test)]
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        match self {
            Readers::Few(holds) => holds.iter_mut(),
            Readers::Many(_) => panic!("a crowd has an order, which depends on its holds"),
        }
    }
}

/// Index of this owner's hold in a short list, or the index at which to insert it.
fn position(holds: &[Hold], owner: &[u8]) -> Result<usize, usize> {
    holds.binary_search_by(|hold| hold.owner.as_bytes().cmp(owner))
}

impl PartialEq for Readers {
    fn eq(&self, other: &Readers) -> bool {
        self.len() == other.len() && self.iter().all(|hold| other.get(hold.owner.as_bytes()) == Some(hold))
    }
}

impl Eq for Readers {}

impl Crowd {
    /// Builds a crowd from the holds of all fields. Holds with `renewed` set count as changed.
    pub(crate) fn new(holds: Vec<Hold>, now: WallMs) -> Crowd {
        let touched = |hold: &Hold| ChangedHold { owner: hold.owner.clone(), before: Some(hold.clone()) };
        let touched = holds.iter().filter(|hold| hold.renewed).map(touched).collect();
        let ends: BTreeSet<_> = holds.iter().enumerate().map(|(at, hold)| (hold.expires_at, at)).collect();
        let token = |(at, hold): (usize, &Hold)| hold.token.map(|token| (token, at));
        let tokens = holds.iter().enumerate().filter_map(token).collect();
        let by_owner = holds.iter().enumerate().map(|(at, hold)| (hold.owner.clone(), at)).collect();
        let expired = ends.range(..(now, 0)).count();
        let places = holds.into_iter().map(Some).collect();
        Crowd { places, empty: Vec::new(), by_owner, ends, tokens, now, expired, touched, kept: false }
    }

    /// Number of fields, including those whose lease has expired.
    pub(crate) fn fields(&self) -> usize {
        self.by_owner.len()
    }

    /// Number of holders.
    pub(crate) fn len(&self) -> usize {
        self.fields() - self.expired
    }

    /// Marks the crowd as kept for the next step.
    pub(crate) fn mark_kept(&mut self) {
        self.kept = true;
    }

    /// The content of this owner's field, even if its lease has expired.
    pub(crate) fn field(&self, owner: &[u8]) -> Option<&Hold> {
        self.at(*self.by_owner.get(owner)?)
    }

    /// The hold whose lease ends last, leaving out one owner.
    pub(crate) fn last_except(&self, owner: Option<&[u8]>) -> Option<&Hold> {
        let holds = self.ends.iter().rev().filter_map(|(_, at)| self.at(*at));
        let mut others = holds.filter(|hold| owner != Some(hold.owner.as_bytes()));
        others.next().filter(|hold| !self.is_over(hold))
    }

    /// End of the last lease.
    pub(crate) fn last_end(&self) -> Option<WallMs> {
        self.ends.last().map(|(end, _)| *end).filter(|end| *end >= self.now)
    }

    /// Up to `at_most` holds whose lease has expired, in order of expiry.
    pub(crate) fn ended(&self, at_most: usize) -> impl Iterator<Item = &Hold> {
        self.ends.iter().take(self.expired.min(at_most)).filter_map(|(_, at)| self.at(*at))
    }

    /// Drops the field of an expired hold.
    pub(crate) fn forget(&mut self, owner: &[u8]) {
        self.take(owner);
    }

    /// Whether any change has not been written yet.
    pub(crate) fn has_unwritten_changes(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Removes and returns the changes of the current step, one per owner and ordered by owner, each with the
    /// previously stored hold. From then on, they count as written.
    pub(crate) fn take_changes(&mut self) -> Vec<ChangedHold> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_by(|a, b| a.owner.cmp(&b.owner));
        // The sort is stable: an owner's first entry has the hold from before all changes.
        touched.dedup_by(|later, first| later.owner == first.owner);
        touched
    }

    /// Records that a renewed hold was written.
    pub(crate) fn mark_written(&mut self, owner: &[u8]) {
        let at = self.by_owner.get(owner).copied();
        if let Some(hold) = at.and_then(|at| self.places.get_mut(at)?.as_mut()) {
            hold.renewed = false;
        }
    }

    /// Sets the time at which leases are judged to have expired or not.
    pub(crate) fn set_now(&mut self, now: WallMs) {
        if now > self.now {
            self.expired += self.ends.range((self.now, 0)..(now, 0)).count();
        } else {
            self.expired -= self.ends.range((now, 0)..(self.now, 0)).count();
        }
        self.now = now;
    }

    /// Frees unused memory after many readers have left. Call it once everything is written.
    pub(crate) fn free_spare(&mut self) {
        if is_too_large(self.places.len(), self.fields()) {
            let holds = std::mem::take(&mut self.places).into_iter().flatten().collect();
            *self = Crowd::new(holds, self.now);
        }
    }

    fn is_over(&self, hold: &Hold) -> bool {
        hold.expires_at < self.now
    }

    fn at(&self, place: usize) -> Option<&Hold> {
        self.places.get(place)?.as_ref()
    }

    fn get(&self, owner: &[u8]) -> Option<&Hold> {
        self.field(owner).filter(|hold| !self.is_over(hold))
    }

    fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.places.iter().flatten().filter(|hold| !self.is_over(hold))
    }

    /// The holds that have not expired, ordered by lease end.
    fn by_end(&self) -> impl Iterator<Item = &Hold> {
        self.ends.range((self.now, 0)..).filter_map(|(_, at)| self.at(*at))
    }

    fn first_end(&self) -> Option<WallMs> {
        self.by_end().next().map(|hold| hold.expires_at)
    }

    fn token(&self) -> Option<Token> {
        // Nearly always matches the first entry.
        let held = |(_, at): &&(Token, usize)| self.at(*at).is_some_and(|hold| !self.is_over(hold));
        self.tokens.iter().rev().find(held).map(|(token, _)| *token)
    }

    fn change<T>(&mut self, owner: &[u8], what: impl FnOnce(&mut Hold) -> T) -> Option<T> {
        let (at, now) = (*self.by_owner.get(owner)?, self.now);
        let hold = self.places.get_mut(at)?.as_mut().filter(|hold| hold.expires_at >= now)?;
        let before = hold.clone();
        let result = what(hold);
        let (end, token) = (hold.expires_at, hold.token);
        if end != before.expires_at {
            self.ends.remove(&(before.expires_at, at));
            self.ends.insert((end, at));
            self.expired += usize::from(end < now);
        }
        if token != before.token {
            before.token.map(|token| self.tokens.remove(&(token, at)));
            token.map(|token| self.tokens.insert((token, at)));
        }
        self.touched.push(ChangedHold { owner: before.owner.clone(), before: Some(before) });
        Some(result)
    }

    /// Inserts a hold in place of the owner's expired one, if it has one.
    fn insert(&mut self, hold: Hold) {
        let owner = hold.owner.clone();
        let before = self.take(owner.as_bytes());
        let at = self.empty.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.expired += usize::from(self.is_over(&hold));
        self.ends.insert((hold.expires_at, at));
        hold.token.map(|token| self.tokens.insert((token, at)));
        self.by_owner.insert(owner.clone(), at);
        self.places[at] = Some(hold);
        self.touched.push(ChangedHold { owner, before });
    }

    fn remove(&mut self, owner: &[u8]) {
        if let Some(before) = self.take(owner) {
            self.touched.push(ChangedHold { owner: before.owner.clone(), before: Some(before) });
        }
    }

    fn take(&mut self, owner: &[u8]) -> Option<Hold> {
        let at = self.by_owner.remove(owner)?;
        let hold = self.places.get_mut(at)?.take()?;
        self.empty.push(at);
        self.expired -= usize::from(self.is_over(&hold));
        self.ends.remove(&(hold.expires_at, at));
        hold.token.map(|token| self.tokens.remove(&(token, at)));
        Some(hold)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::{Crowd, Hold, Owner, Readers};
    use crate::core::holders::Admission;
    use crate::core::{Holders, Mode, ReleaseScope, Wants};

    /// An operation on the readers of one lock.
    #[derive(Clone, Debug)]
    enum Op {
        Acquire(u8, bool, i64, Option<i64>),
        Release(u8, u8, Option<i64>),
        Renew(u8, i64),
        SetToken(u8, Option<i64>),
        /// Ends and writes the step, then advances the time by this number of milliseconds.
        Next(i64),
        /// Deletes up to this number of fields of expired holds.
        Forget(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        let (owner, lease) = (0..12_u8, 1..40_i64);
        let token = || proptest::option::weighted(0.3, 1..50_i64);
        prop_oneof![
            4 => (owner.clone(), proptest::bool::weighted(0.1), lease.clone(), token())
                .prop_map(|(owner, exclusive, lease, token)| Op::Acquire(owner, exclusive, lease, token)),
            3 => (owner.clone(), 0..4_u8, proptest::option::weighted(0.3, lease.clone()))
                .prop_map(|(owner, scope, lease)| Op::Release(owner, scope, lease)),
            1 => (owner.clone(), lease).prop_map(|(owner, lease)| Op::Renew(owner, lease)),
            1 => (owner, token()).prop_map(|(owner, token)| Op::SetToken(owner, token)),
            2 => (-3..20_i64).prop_map(Op::Next),
            1 => (0..4_usize).prop_map(Op::Forget),
        ]
    }

    fn owner(number: u8) -> Owner {
        Owner::new(&[b'a' + number])
    }

    fn scope(number: u8) -> ReleaseScope {
        [
            ReleaseScope::One,
            ReleaseScope::OneOf(Mode::Shared),
            ReleaseScope::OneOf(Mode::Exclusive),
            ReleaseScope::All,
        ][usize::from(number)]
    }

    /// Fails unless both forms give the same answers.
    fn assert_same(plain: &Holders, kept: &Holders) {
        assert_eq!(plain, kept);
        assert_eq!(plain.len(), kept.len());
        assert_eq!(plain.mode(), kept.mode());
        assert_eq!(
            (plain.first_end(), plain.expires_at(), plain.token()),
            (kept.first_end(), kept.expires_at(), kept.token())
        );
        for number in 0..12 {
            let owner = owner(number);
            let owner = owner.as_bytes();
            assert_eq!(plain.get(owner), kept.get(owner));
            for (mode, once) in [
                (Mode::Exclusive, false),
                (Mode::Exclusive, true),
                (Mode::Shared, false),
                (Mode::Shared, true),
            ] {
                let wants = Wants { mode, once, limit: None };
                assert_eq!(plain.admits(owner, wants), kept.admits(owner, wants));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

        /// The plain form is rebuilt for each step. The changes reported by the crowd are exactly the
        /// differences between the fields of two steps.
        #[test]
        fn a_crowd_records_all_changes(ops in proptest::collection::vec(op(), 1..60)) {
            let mut now = 1_000;
            let mut plain = Holders::Free;
            let mut kept = Holders::Free;
            // The stored fields, as long as a crowd represents them.
            let mut fields: BTreeMap<Owner, Hold> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Acquire(name, exclusive, lease, token) => {
                        let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
                        let (name, end) = (owner(name), now + lease);
                        let wants = Wants { mode, once: false, limit: None };
                        let admission = plain.admits(name.as_bytes(), wants);
                        prop_assert_eq!(admission, kept.admits(name.as_bytes(), wants));
                        if matches!(admission, Admission::Grant(_)) {
                            plain.add(&name, mode, end, token);
                            kept.add(&name, mode, end, token);
                        }
                    }
                    Op::Release(name, what, lease) => {
                        let (name, end) = (owner(name), lease.map(|lease| now + lease));
                        let (name, what) = (name.as_bytes(), scope(what));
                        prop_assert_eq!(plain.release(name, what, end), kept.release(name, what, end));
                    }
                    Op::Renew(name, lease) => {
                        let name = owner(name);
                        let name = name.as_bytes();
                        prop_assert_eq!(plain.renew(name, now + lease), kept.renew(name, now + lease));
                    }
                    Op::SetToken(name, token) => {
                        let name = owner(name);
                        plain.set_token(name.as_bytes(), token);
                        kept.set_token(name.as_bytes(), token);
                    }
                    Op::Forget(at_most) => {
                        if let Holders::Shared(Readers::Many(crowd)) = &mut kept {
                            let ended: Vec<Owner> = crowd.ended(at_most).map(|hold| hold.owner.clone()).collect();
                            for owner in ended {
                                prop_assert!(fields.remove(&owner).is_some_and(|hold| hold.expires_at < now));
                                Rc::make_mut(crowd).forget(owner.as_bytes());
                            }
                        }
                    }
                    Op::Next(ms) => {
                        now += ms;
                        // The holds as written and read back.
                        let written = |hold: &Hold| Hold { renewed: false, ..hold.clone() };
                        let holds: Vec<Hold> = plain.iter().map(written).collect();
                        if let Holders::Shared(Readers::Many(crowd)) = &mut kept {
                            let crowd = Rc::make_mut(crowd);
                            for touched in crowd.take_changes() {
                                prop_assert_eq!(&touched.before, &fields.remove(&touched.owner));
                                crowd.mark_written(touched.owner.as_bytes());
                                if let Some(hold) = crowd.field(touched.owner.as_bytes()) {
                                    fields.insert(touched.owner, hold.clone());
                                }
                            }
                            prop_assert!(!crowd.has_unwritten_changes());
                            prop_assert_eq!(crowd.fields(), fields.len());
                            prop_assert!(fields.values().all(|hold| crowd.field(hold.owner.as_bytes()) == Some(hold)));
                        } else if plain.mode() == Some(Mode::Shared) {
                            fields = holds.iter().map(|hold| (hold.owner.clone(), hold.clone())).collect();
                            kept = Holders::Shared(Readers::Many(Rc::new(Crowd::new(holds.clone(), now))));
                        } else {
                            kept = Holders::from_holds(holds.clone()).unwrap();
                        }
                        // An expired hold with a field returns if the clock is set back.
                        let holds = if kept.crowd().is_some() { fields.values().cloned().collect() } else { holds };
                        plain = Holders::from_holds(holds).unwrap();
                        plain.end_leases(now);
                        kept.end_leases(now);
                    }
                }
                assert_same(&plain, &kept);
            }
        }
    }

    #[test]
    fn a_crowd_answers_like_a_list() {
        let hold = |name: u8, expires_at| Hold {
            owner: owner(name),
            exclusive: 0,
            shared: 1,
            expires_at,
            token: None,
            renewed: false,
        };
        let holds = vec![hold(0, 10), hold(1, 20), hold(2, 30), hold(3, 30)];
        let mut crowd = Crowd::new(holds, 15);
        assert_eq!((crowd.fields(), crowd.len(), crowd.last_end()), (4, 3, Some(30)));
        let ended = |crowd: &Crowd| crowd.ended(9).map(|hold| hold.owner.clone()).collect::<Vec<_>>();
        assert_eq!(ended(&crowd), [owner(0)]);
        assert_eq!(crowd.last_except(Some(b"d")).unwrap().owner, owner(2));
        assert_eq!(crowd.last_except(None).unwrap().owner, owner(3));
        crowd.set_now(31);
        assert_eq!((crowd.len(), crowd.last_end(), crowd.last_except(None)), (0, None, None));
        crowd.set_now(21);
        assert_eq!((crowd.len(), ended(&crowd)), (2, vec![owner(0), owner(1)]));
    }
}
