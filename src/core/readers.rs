// SPDX-License-Identifier: MIT

//! Those who hold one lock shared: few of them as they were read, or a crowd that is kept between calls.
//!
//! A crowd answers in O(log n) what a walk over all its holds would: whose lease ends first and last, what the newest token is,
//! who holds. It also notes what a step changes, so that this alone has to be written.

use std::collections::BTreeSet;
use std::rc::Rc;

use foldhash::HashMap;
use smallvec::SmallVec;

use super::spare::is_too_large;
use super::{Hold, Owner, Token, WallMs};

/// Holds that are shared only, by owner. Two are equal if they have the same holds, in whichever form.
#[derive(Clone, Debug)]
pub(crate) enum Readers {
    /// As they were read for the step at hand, in the order of their owners.
    Few(SmallVec<[Hold; 1]>),
    /// With an order of lease ends, and a list of what the step at hand changes. Cheap to clone until one is changed.
    Many(Rc<Crowd>),
}

/// The readers of one lock, each with a field of its own in the lock's hash.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    /// All that have a field, also those whose lease is over. Each keeps its place; some are empty.
    places: Vec<Option<Hold>>,
    /// Which of `places` are empty.
    empty: Vec<usize>,
    /// Where each owner's hold is in `places`.
    by_owner: HashMap<Owner, usize>,
    /// When each of them ends.
    ends: BTreeSet<(WallMs, usize)>,
    /// Those of them that have a token.
    tokens: BTreeSet<(Token, usize)>,
    /// Who holds the lock is judged as of this time.
    now: WallMs,
    /// How many of them have ended before `now`.
    over: usize,
    /// What the step at hand has touched, in its order: an owner may be in it more than once.
    touched: Vec<Touched>,
    /// It was kept since it was read, so that the step at hand did not have to read it.
    kept: bool,
}

/// An owner whose hold a step has changed, and the hold before that change.
#[derive(Clone, Debug)]
pub(crate) struct Touched {
    pub(crate) owner: Owner,
    pub(crate) before: Option<Hold>,
}

impl Readers {
    /// These holds, as they were read.
    pub(super) fn few(holds: impl IntoIterator<Item = Hold>) -> Readers {
        let mut holds: SmallVec<[Hold; 1]> = holds.into_iter().collect();
        holds.sort_unstable_by(|a, b| a.owner.cmp(&b.owner));
        Readers::Few(holds)
    }

    /// How many hold the lock.
    pub(super) fn len(&self) -> usize {
        match self {
            Readers::Few(holds) => holds.len(),
            Readers::Many(crowd) => crowd.len(),
        }
    }

    /// Few are in the order of their owners.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Hold> {
        let (few, many) = match self {
            Readers::Few(holds) => (Some(holds.iter()), None),
            Readers::Many(crowd) => (None, Some(crowd.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    /// Two of them, or as many as there are.
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

    /// Does something to the hold of this owner, if there is one.
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

    /// When the last lease ends.
    pub(super) fn last_end(&self) -> Option<WallMs> {
        match self {
            Readers::Few(holds) => holds.iter().map(|hold| hold.expires_at).max(),
            Readers::Many(crowd) => crowd.last_end(),
        }
    }

    /// When the first lease ends.
    pub(super) fn first_end(&self) -> Option<WallMs> {
        match self {
            Readers::Few(holds) => holds.iter().map(|hold| hold.expires_at).min(),
            Readers::Many(crowd) => crowd.first_end(),
        }
    }

    /// How many of them the step at hand had to read.
    pub(super) fn read_len(&self) -> usize {
        match self {
            Readers::Many(crowd) if crowd.kept => 0,
            readers => readers.len(),
        }
    }

    /// The newest token of those who hold the lock.
    pub(super) fn token(&self) -> Option<Token> {
        match self {
            Readers::Few(holds) => holds.iter().filter_map(|hold| hold.token).max(),
            Readers::Many(crowd) => crowd.token(),
        }
    }

    /// Ends the holds whose lease is over.
    pub(super) fn end_leases(&mut self, now: WallMs) {
        match self {
            Readers::Few(holds) => holds.retain(|hold| hold.expires_at >= now),
            Readers::Many(crowd) if crowd.now == now => {}
            Readers::Many(crowd) => Rc::make_mut(crowd).judge_as_of(now),
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

/// Where this owner's hold is among a few, or would be.
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
    /// Those who have a field, and who holds the lock by that now. What is to be written anew counts as touched.
    pub(crate) fn new(holds: Vec<Hold>, now: WallMs) -> Crowd {
        let touched = |hold: &Hold| Touched { owner: hold.owner.clone(), before: Some(hold.clone()) };
        let touched = holds.iter().filter(|hold| hold.renewed).map(touched).collect();
        let ends: BTreeSet<_> = holds.iter().enumerate().map(|(at, hold)| (hold.expires_at, at)).collect();
        let token = |(at, hold): (usize, &Hold)| hold.token.map(|token| (token, at));
        let tokens = holds.iter().enumerate().filter_map(token).collect();
        let by_owner = holds.iter().enumerate().map(|(at, hold)| (hold.owner.clone(), at)).collect();
        let over = ends.range(..(now, 0)).count();
        let places = holds.into_iter().map(Some).collect();
        Crowd { places, empty: Vec::new(), by_owner, ends, tokens, now, over, touched, kept: false }
    }

    /// How many fields there are, also of those whose lease is over.
    pub(crate) fn fields(&self) -> usize {
        self.by_owner.len()
    }

    /// How many hold the lock.
    pub(crate) fn len(&self) -> usize {
        self.fields() - self.over
    }

    /// The next step may find it kept.
    pub(crate) fn is_kept(&mut self) {
        self.kept = true;
    }

    /// What the field of this owner says, whether the lease is over or not.
    pub(crate) fn field(&self, owner: &[u8]) -> Option<&Hold> {
        self.at(*self.by_owner.get(owner)?)
    }

    /// Whose lease ends last, but for one owner.
    pub(crate) fn last_but(&self, owner: Option<&[u8]>) -> Option<&Hold> {
        let holds = self.ends.iter().rev().filter_map(|(_, at)| self.at(*at));
        let mut others = holds.filter(|hold| owner != Some(hold.owner.as_bytes()));
        others.next().filter(|hold| !self.is_over(hold))
    }

    /// When the last lease ends.
    pub(crate) fn last_end(&self) -> Option<WallMs> {
        self.ends.last().map(|(end, _)| *end).filter(|end| *end >= self.now)
    }

    /// Some of those whose lease is over, longest first.
    pub(crate) fn ended(&self, at_most: usize) -> impl Iterator<Item = &Hold> {
        self.ends.iter().take(self.over.min(at_most)).filter_map(|(_, at)| self.at(*at))
    }

    /// The field of somebody whose lease is over is not there any more.
    pub(crate) fn forget(&mut self, owner: &[u8]) {
        self.take(owner);
    }

    /// True if a step has touched anything that is not written yet.
    pub(crate) fn is_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// What the step at hand has touched, once for each owner, in their order, with what was stored before. It counts as
    /// written then.
    pub(crate) fn take_touched(&mut self) -> Vec<Touched> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_by(|a, b| a.owner.cmp(&b.owner));
        // Sorting keeps the order of what is equal: the first of an owner has what was before all.
        touched.dedup_by(|later, first| later.owner == first.owner);
        touched
    }

    /// What was renewed is written.
    pub(crate) fn is_written(&mut self, owner: &[u8]) {
        let at = self.by_owner.get(owner).copied();
        if let Some(hold) = at.and_then(|at| self.places.get_mut(at)?.as_mut()) {
            hold.renewed = false;
        }
    }

    /// From now on `now` says whose lease is over.
    pub(crate) fn judge_as_of(&mut self, now: WallMs) {
        if now > self.now {
            self.over += self.ends.range((self.now, 0)..(now, 0)).count();
        } else {
            self.over -= self.ends.range((now, 0)..(self.now, 0)).count();
        }
        self.now = now;
    }

    /// Frees the memory of those who have gone. To be called when all is written.
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

    /// Those who hold the lock, by when their lease ends.
    fn by_end(&self) -> impl Iterator<Item = &Hold> {
        self.ends.range((self.now, 0)..).filter_map(|(_, at)| self.at(*at))
    }

    fn first_end(&self) -> Option<WallMs> {
        self.by_end().next().map(|hold| hold.expires_at)
    }

    fn token(&self) -> Option<Token> {
        // Nearly always the first.
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
            self.over += usize::from(end < now);
        }
        if token != before.token {
            before.token.map(|token| self.tokens.remove(&(token, at)));
            token.map(|token| self.tokens.insert((token, at)));
        }
        self.touched.push(Touched { owner: before.owner.clone(), before: Some(before) });
        Some(result)
    }

    /// In place of one whose lease is over, if there is one.
    fn insert(&mut self, hold: Hold) {
        let owner = hold.owner.clone();
        let before = self.take(owner.as_bytes());
        let at = self.empty.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.over += usize::from(self.is_over(&hold));
        self.ends.insert((hold.expires_at, at));
        hold.token.map(|token| self.tokens.insert((token, at)));
        self.by_owner.insert(owner.clone(), at);
        self.places[at] = Some(hold);
        self.touched.push(Touched { owner, before });
    }

    fn remove(&mut self, owner: &[u8]) {
        if let Some(before) = self.take(owner) {
            self.touched.push(Touched { owner: before.owner.clone(), before: Some(before) });
        }
    }

    fn take(&mut self, owner: &[u8]) -> Option<Hold> {
        let at = self.by_owner.remove(owner)?;
        let hold = self.places.get_mut(at)?.take()?;
        self.empty.push(at);
        self.over -= usize::from(self.is_over(&hold));
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

    /// What happens to the readers of one lock.
    #[derive(Clone, Debug)]
    enum Op {
        Acquire(u8, bool, i64, Option<i64>),
        Release(u8, u8, Option<i64>),
        Renew(u8, i64),
        SetToken(u8, Option<i64>),
        /// The step is over and written; time goes on by this.
        Next(i64),
        /// Some of those whose leases are over lose their fields.
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

    /// Fails unless what can be asked has the same answers.
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
            assert_eq!(plain.of(owner), kept.of(owner));
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

        /// The plain map is what is read anew for each step. What the crowd says that it touched is all that changes the
        /// fields of the step before into those of this one.
        #[test]
        fn a_crowd_is_a_map_that_remembers(ops in proptest::collection::vec(op(), 1..60)) {
            let mut now = 1_000;
            let mut plain = Holders::Free;
            let mut kept = Holders::Free;
            // What is stored, as far as a crowd stands for it.
            let mut fields: BTreeMap<Owner, Hold> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Acquire(who, exclusive, lease, token) => {
                        let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
                        let (who, end) = (owner(who), now + lease);
                        let wants = Wants { mode, once: false, limit: None };
                        let admission = plain.admits(who.as_bytes(), wants);
                        prop_assert_eq!(admission, kept.admits(who.as_bytes(), wants));
                        if matches!(admission, Admission::Grant(_)) {
                            plain.add(&who, mode, end, token);
                            kept.add(&who, mode, end, token);
                        }
                    }
                    Op::Release(who, what, lease) => {
                        let (who, end) = (owner(who), lease.map(|lease| now + lease));
                        let (who, what) = (who.as_bytes(), scope(what));
                        prop_assert_eq!(plain.release(who, what, end), kept.release(who, what, end));
                    }
                    Op::Renew(who, lease) => {
                        let who = owner(who);
                        let who = who.as_bytes();
                        prop_assert_eq!(plain.renew(who, now + lease), kept.renew(who, now + lease));
                    }
                    Op::SetToken(who, token) => {
                        let who = owner(who);
                        plain.set_token(who.as_bytes(), token);
                        kept.set_token(who.as_bytes(), token);
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
                        // Written, and read again.
                        let written = |hold: &Hold| Hold { renewed: false, ..hold.clone() };
                        let holds: Vec<Hold> = plain.iter().map(written).collect();
                        if let Holders::Shared(Readers::Many(crowd)) = &mut kept {
                            let crowd = Rc::make_mut(crowd);
                            for touched in crowd.take_touched() {
                                prop_assert_eq!(&touched.before, &fields.remove(&touched.owner));
                                crowd.is_written(touched.owner.as_bytes());
                                if let Some(hold) = crowd.field(touched.owner.as_bytes()) {
                                    fields.insert(touched.owner, hold.clone());
                                }
                            }
                            prop_assert!(!crowd.is_touched());
                            prop_assert_eq!(crowd.fields(), fields.len());
                            prop_assert!(fields.values().all(|hold| crowd.field(hold.owner.as_bytes()) == Some(hold)));
                        } else if plain.mode() == Some(Mode::Shared) {
                            fields = holds.iter().map(|hold| (hold.owner.clone(), hold.clone())).collect();
                            kept = Holders::Shared(Readers::Many(Rc::new(Crowd::new(holds.clone(), now))));
                        } else {
                            kept = Holders::from_holds(holds.clone()).unwrap();
                        }
                        // What is over comes back if the clock is set back, as long as it has its field.
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
    fn a_crowd_knows_its_ends() {
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
        assert_eq!(crowd.last_but(Some(b"d")).unwrap().owner, owner(2));
        assert_eq!(crowd.last_but(None).unwrap().owner, owner(3));
        crowd.judge_as_of(31);
        assert_eq!((crowd.len(), crowd.last_end(), crowd.last_but(None)), (0, None, None));
        crowd.judge_as_of(21);
        assert_eq!((crowd.len(), ended(&crowd)), (2, vec![owner(0), owner(1)]));
    }
}
