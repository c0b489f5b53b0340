// SPDX-License-Identifier: MIT

//! Suppression of keyspace events that the module itself causes.

use std::cell::Cell;

use crate::server::{Ctx, ServerCell};

static MUTED: ServerCell<Cell<bool>> = ServerCell::new(Cell::new(false));

/// Runs `body` without passing on its keyspace events: they concern the module's own changes, or no lock.
pub(crate) fn muted<T>(ctx: Ctx<'_>, body: impl FnOnce() -> T) -> T {
    let before = MUTED.get(ctx).replace(true);
    let result = body();
    MUTED.get(ctx).set(before);
    result
}

/// True while events are muted.
pub(in crate::server) fn is_muted(ctx: Ctx<'_>) -> bool {
    MUTED.get(ctx).get()
}
