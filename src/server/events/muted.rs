// SPDX-License-Identifier: MIT

//! Keyspace events about changes of our own, which the module need not get.

use std::cell::Cell;

use crate::server::{Ctx, ServerCell};

static MUTED: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Does something whose events are about a change of our own, or about none of a lock.
pub(crate) fn muted<T>(ctx: Ctx<'_>, body: impl FnOnce() -> T) -> T {
    let before = MUTED.get(ctx).replace(true);
    let result = body();
    MUTED.get(ctx).set(before);
    result
}

/// True while such a thing is done.
pub(in crate::server) fn is_muted(ctx: Ctx<'_>) -> bool {
    MUTED.get(ctx).get()
}
