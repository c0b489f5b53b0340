// SPDX-License-Identifier: MIT

//! An opened lock, as the caller passes it to the manager.

use crate::core::table::LockLookup;
use crate::core::{Holders, Now, Records};

/// A lock that the caller has opened: its name with its handle, the content of its keys, and the time.
pub(crate) struct OpenLock<'a> {
    pub(crate) lookup: LockLookup<'a>,
    pub(crate) holders: &'a mut Holders,
    pub(crate) records: &'a mut dyn Records,
    pub(crate) now: Now,
}
