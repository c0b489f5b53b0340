// SPDX-License-Identifier: MIT

//! Writes the changes of a lock.

use std::ffi::{c_int, CStr};

use super::Lock;
use crate::core::Holders;
use crate::decimal::Digits;
use crate::keyspace::layout::{self, Field, WantedField};
use crate::keyspace::read_holders::fence_field;
use crate::keyspace::stored::{single_owner_fields, PlainOwner, Stored};
use crate::keyspace::{channel, crowd};
use crate::server::events::muted::muted;
use crate::server::replication::keyspace_events;
use crate::server::replication::propagation::Propagation;
use crate::server::{Ctx, Str};

impl<'a> Lock<'a> {
    /// Whether this step sets a lease while a field has its own TTL. Writing the field removes that TTL.
    fn renews_fields(&self) -> bool {
        self.holders.iter().any(|hold| hold.renewed) && self.first_field_expiry().is_some()
    }

    /// Writes the changes, if any. If they end the last hold, announces the free lock, unless the
    /// announcement is withheld. Returns the number of receivers if the lock was announced, or 0 if the
    /// announcement was withheld.
    pub(crate) fn store(&mut self) -> Option<usize> {
        let announce = self.records.announce;
        let was_stored = !matches!(self.stored, Stored::Nothing);
        let is_free = self.holders.is_free();
        if !was_stored && is_free && !announce && !self.records.has_changed() {
            return None;
        }
        let propagation = Propagation::of(self.ctx);
        let changed = self.store_holders(propagation);
        if changed {
            keyspace_events::signal_modified(self.ctx, self.key.name());
        }
        if self.records.store(propagation) || changed {
            propagation.count_change();
        }
        let is_freed = (changed && was_stored && is_free) || announce;
        let withheld = self.withholds_announcement;
        is_freed.then(|| {
            if withheld {
                0
            } else {
                channel::publish_free(self.ctx, propagation, self.key.name())
            }
        })
    }

    /// Writes the holders. Returns whether anything has changed.
    fn store_holders(&mut self, propagation: Propagation<'_>) -> bool {
        let name = self.key.name();
        let mut changed = false;
        let stays = |owner: &[u8]| self.holders.get(owner).is_some();
        let any_owner_stays = match &self.stored {
            Stored::Nothing => true,
            Stored::Plain(owner, _) => stays(owner.as_bytes()),
            Stored::Fenced(owner, ..) => stays(owner.as_bytes()),
            Stored::Fields(_, before) => before.iter().any(|hold| stays(hold.owner.as_bytes())),
            // Without a crowd, at most one reader is left. Then the key is deleted instead of single fields.
            Stored::Crowd(_) => self.holders.crowd().is_some(),
        };
        // On a hand-over, the key stays and its field is replaced. To every observer, the key is deleted and
        // created again.
        let replaced = if any_owner_stays { None } else { self.take_replaceable_field() };
        if !any_owner_stays {
            match (&self.stored, &replaced) {
                (_, Some(_)) => {}
                // The hash may have thousands of fields.
                (Stored::Crowd(_), None) => self.key.unlink(),
                (_, None) => self.key.delete(),
            }
            self.stored = Stored::Nothing;
            self.stored_end = None;
            propagation.send(c"DEL", &[name]);
            self.raise(propagation, keyspace_events::GENERIC, c"del");
            changed = true;
        }
        let renewed_last;
        if let (Stored::Crowd(found), Some(crowd)) = (&mut self.stored, self.holders.crowd_mut()) {
            let raise = |event: &CStr| raise(self.ctx, propagation, crowd::CLASS, event, name);
            let written = found.store(&mut self.key, crowd, self.caller, propagation, raise);
            changed |= written.changed;
            renewed_last = written.renewed_last;
        } else {
            changed |= self.store_fields(replaced.as_ref().map(PlainOwner::name), propagation);
            renewed_last = self.holders.renewed_last();
        }
        if let Some(end) = self.holders.expires_at() {
            if renewed_last || self.stored_end != Some(end) {
                self.key.set_expires_at(end);
                propagation.send_number(c"PEXPIREAT", name, end);
                self.raise(propagation, keyspace_events::GENERIC, c"expire");
                changed = true;
            }
        }
        changed
    }

    /// The field of the previous owner, if it is the only field and the next owner also has only one.
    fn take_replaceable_field(&mut self) -> Option<PlainOwner<'a>> {
        self.holders.sole_holder().filter(|(_, token)| token.is_none())?;
        match std::mem::replace(&mut self.stored, Stored::Nothing) {
            Stored::Plain(owner, _) => Some(owner),
            Stored::Fields(fields, _) => match &fields[..] {
                [(field, _)] => Some(PlainOwner::Other(Str::new(field))),
                _ => None,
            },
            Stored::Nothing | Stored::Fenced(..) | Stored::Crowd(_) => None,
        }
    }

    /// Sets the fields of the holders. Overwrites the `replaced` field, if it still exists.
    fn store_fields(&mut self, replaced: Option<&Str<'_>>, propagation: Propagation<'_>) -> bool {
        match (&self.stored, self.holders.sole_holder()) {
            (Stored::Nothing, _) if self.holders.is_free() => false,
            // The owner is unchanged; a previous owner would have been deleted.
            (Stored::Plain(_, before), Some((hold, None)))
                if *before == hold.exclusive && !self.renews_fields() =>
            {
                false
            }
            (Stored::Nothing, Some((hold, token))) | (Stored::Plain(..), Some((hold, token @ None))) => {
                let (own, number);
                let field = match self.caller {
                    Some(caller) if caller.as_bytes() == hold.owner.as_bytes() => caller,
                    _ => {
                        own = Str::new(hold.owner.as_bytes());
                        &own
                    }
                };
                let value = match Str::cached_digit(self.ctx, hold.exclusive) {
                    Some(value) => value,
                    None => {
                        number = Str::from_number(hold.exclusive);
                        &number
                    }
                };
                match replaced {
                    Some(before) => self.key.replace_field(before, field, value),
                    None => self.key.set_field(field, value),
                }
                match token {
                    None => propagation.send(c"HSET", &[self.key.name(), field, value]),
                    Some(token) => {
                        let fence = fence_field(self.ctx);
                        let token = Str::new(Digits::of(token).as_bytes());
                        self.key.set_field(fence, &token);
                        propagation.send(c"HSET", &[self.key.name(), field, value, fence, &token]);
                    }
                }
                self.raise(propagation, keyspace_events::HASH, c"hset");
                true
            }
            _ => {
                let expires_at = self.stored_end.unwrap_or_default();
                let (mut stored, before) = match std::mem::replace(&mut self.stored, Stored::Nothing) {
                    Stored::Nothing => (Vec::new(), Holders::Free),
                    Stored::Plain(owner, holds) => {
                        single_owner_fields(owner.as_bytes(), holds, None, expires_at)
                    }
                    Stored::Fenced(owner, holds, token) => {
                        single_owner_fields(owner.as_bytes(), holds, Some(token), expires_at)
                    }
                    Stored::Fields(fields, before) => (fields, before),
                    Stored::Crowd(_) => (Vec::new(), Holders::Free),
                };
                let deleted = self.delete_obsolete_fields(&stored, propagation);
                self.set_fields(&mut stored, &before, propagation) || deleted
            }
        }
    }

    /// Deletes the fields that the holders no longer have, like `HDEL`.
    fn delete_obsolete_fields(&mut self, stored: &[Field], propagation: Propagation<'_>) -> bool {
        let obsolete = stored.iter().filter(|(field, _)| !layout::has_field(&self.holders, field));
        let mut obsolete: Vec<&[u8]> = obsolete.map(|(field, _)| &**field).collect();
        if obsolete.is_empty() {
            return false;
        }
        obsolete.sort_unstable();
        let obsolete: Vec<Str<'_>> = obsolete.into_iter().map(Str::new).collect();
        obsolete.iter().for_each(|field| self.key.delete_field(field));
        let args: Vec<&Str<'_>> = std::iter::once(self.key.name()).chain(&obsolete).collect();
        propagation.send(c"HDEL", &args);
        self.raise(propagation, keyspace_events::HASH, c"hdel");
        true
    }

    /// Sets the fields that differ from the holders, like `HSET`.
    fn set_fields(&mut self, stored: &mut [Field], before: &Holders, propagation: Propagation<'_>) -> bool {
        let wanted = layout::fields_for(&self.holders.changed_since(before));
        // Usually there is a single look-up. Sorting pays off only for many.
        let many = wanted.len() > 8;
        if many {
            stored.sort_unstable();
        }
        let value_of = |name: &[u8]| {
            let at = match many {
                true => stored.binary_search_by(|(field, _)| (**field).cmp(name)).ok(),
                false => stored.iter().position(|(field, _)| **field == *name),
            };
            at.map(|at| &stored[at].1)
        };
        let rewrites_all = !stored.is_empty() && self.renews_fields();
        let mut args = Vec::new();
        for WantedField { field: (name, value), renewed } in &wanted {
            if *renewed || rewrites_all || value_of(name) != Some(value) {
                args.push(Str::new(name));
                args.push(Str::new(value));
            }
        }
        if args.is_empty() {
            return false;
        }
        for pair in args.chunks(2) {
            self.key.set_field(&pair[0], &pair[1]);
        }
        let args: Vec<&Str<'_>> = std::iter::once(self.key.name()).chain(&args).collect();
        propagation.send(c"HSET", &args);
        self.raise(propagation, keyspace_events::HASH, c"hset");
        true
    }

    fn raise(&self, propagation: Propagation<'_>, class: c_int, event: &CStr) {
        raise(self.ctx, propagation, class, event, self.key.name());
    }
}

fn raise(ctx: Ctx<'_>, propagation: Propagation<'_>, class: c_int, event: &CStr, name: &Str<'_>) {
    muted(ctx, || propagation.raise_event(class, event, name));
}
