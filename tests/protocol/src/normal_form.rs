// SPDX-License-Identifier: MIT
//! States that differ only in names are one state. The normal form renumbers connections, beats and events.

use crate::calls::{Call, Reply, SessionId};
use crate::client::Progress;
use crate::network::Connection;
use crate::world::World;

/// Maps the numbers in use to small ones. Order and "directly follows" stay as they are.
struct Renumbering {
    pairs: Vec<(u8, u8)>,
}

impl Renumbering {
    fn of(mut numbers: Vec<u8>) -> Self {
        numbers.push(0);
        numbers.sort_unstable();
        numbers.dedup();
        let mut pairs = vec![(0, 0)];
        for pair in numbers.windows(2) {
            let last = pairs.last().map_or(0, |(_, new)| *new);
            pairs.push((pair[1], last + (pair[1] - pair[0]).min(2)));
        }
        Renumbering { pairs }
    }

    fn apply(&self, number: &mut u8) {
        if let Some((_, new)) = self.pairs.iter().find(|(old, _)| old == number) {
            *number = *new;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Beat,
    Seq,
}

impl World {
    pub(crate) fn normalize(&mut self) {
        self.network.forget_dead();
        self.clear_unused_flags();
        let mut ids: Vec<SessionId> = self.server.sessions.iter().map(|session| session.id).collect();
        ids.extend(self.clients.iter().filter_map(|client| client.id));
        ids.extend(self.network.connections.iter().flat_map(|connection| {
            [connection.call, connection.awaited].into_iter().flatten().filter_map(|call| call.session())
        }));
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            self.renumber(id);
        }
        self.rename_connections();
        self.server.bindings.sort_unstable_by_key(|binding| (binding.id, binding.n));
    }

    fn clear_unused_flags(&mut self) {
        for acquire in self.clients.iter_mut().flat_map(|client| client.acquires.iter_mut()) {
            let is_ending = matches!(acquire.progress, Progress::Releasing | Progress::Cancelling);
            if acquire.is_over() || is_ending {
                acquire.declares = false;
                acquire.in_doubt = false;
            }
            if acquire.progress == Progress::Held {
                acquire.in_doubt = false;
            } else {
                acquire.session = None;
                acquire.lease_left = 0;
            }
        }
    }

    fn renumber(&mut self, id: SessionId) {
        let (mut beats, mut seqs) = (Vec::new(), Vec::new());
        self.each_number(id, &mut |number, kind| match kind {
            Kind::Beat => beats.push(*number),
            Kind::Seq => seqs.push(*number),
        });
        let (beats, seqs) = (Renumbering::of(beats), Renumbering::of(seqs));
        self.each_number(id, &mut |number, kind| match kind {
            Kind::Beat => beats.apply(number),
            Kind::Seq => seqs.apply(number),
        });
    }

    /// Visits every beat and event number of one session.
    fn each_number(&mut self, id: SessionId, visit: &mut dyn FnMut(&mut u8, Kind)) {
        for session in self.server.sessions.iter_mut().filter(|session| session.id == id) {
            visit(&mut session.beat, Kind::Beat);
            visit(&mut session.last_seq, Kind::Seq);
            session.events.iter_mut().for_each(|event| visit(&mut event.seq, Kind::Seq));
        }
        for client in self.clients.iter_mut().filter(|client| client.id == Some(id)) {
            visit(&mut client.beat, Kind::Beat);
            visit(&mut client.seen, Kind::Seq);
        }
        for connection in &mut self.network.connections {
            visit_connection(connection, id, visit);
        }
    }

    /// Names connections by their content, as only the reader of a session matters.
    fn rename_connections(&mut self) {
        let sessions = &self.server.sessions;
        let session_of =
            |key: u8| sessions.iter().find(|session| session.reader == Some(key)).map(|session| session.id);
        let mut named: Vec<(Option<SessionId>, Connection, u8)> =
            std::mem::take(&mut self.network.connections)
                .into_iter()
                .map(|connection| {
                    let key = connection.key;
                    (session_of(key), Connection { key: 0, ..connection }, key)
                })
                .collect();
        named.sort();
        for session in &mut self.server.sessions {
            let position = |key| named.iter().position(|(_, _, old)| *old == key);
            session.reader = session.reader.and_then(position).map(|position| position as u8);
        }
        let renamed = (0..).zip(named).map(|(key, (_, connection, _))| Connection { key, ..connection });
        self.network.connections = renamed.collect();
    }
}

fn visit_connection(connection: &mut Connection, id: SessionId, visit: &mut dyn FnMut(&mut u8, Kind)) {
    let is_own =
        |call: Call| call.session() == Some(id) && matches!(call, Call::Open { .. } | Call::Events { .. });
    let has_own_reply = connection.awaited.is_some_and(is_own);
    for call in [&mut connection.call, &mut connection.awaited].into_iter().flatten() {
        match call {
            Call::Open { id: other, beat } if *other == id => visit(beat, Kind::Beat),
            Call::Events { id: other, beat, seen, .. } if *other == id => {
                visit(beat, Kind::Beat);
                visit(seen, Kind::Seq);
            }
            _ => {}
        }
    }
    match &mut connection.reply {
        Some(Reply::Opened { beat, .. }) if has_own_reply => visit(beat, Kind::Beat),
        Some(Reply::Events(events)) if has_own_reply => {
            events.iter_mut().for_each(|event| visit(&mut event.seq, Kind::Seq));
        }
        _ => {}
    }
}
