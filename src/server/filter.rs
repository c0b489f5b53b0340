//! A look at every command before the server does.

use std::ffi::c_int;

use redis_module::raw;

use crate::server::{guard, lent_client, string, Ctx, Str};

/// A command that is about to be looked up.
pub(crate) struct Filtered(*mut raw::RedisModuleCommandFilterCtx);

impl Filtered {
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the filter's context is valid until the callback returns.
        let count = unsafe { call!(RedisModule_CommandFilterArgsCount(self.0)) };
        usize::try_from(count).unwrap_or(0)
    }

    pub(crate) fn bytes(&self, at: usize) -> &[u8] {
        // SAFETY: as in `len`; the server answers null for a place that is not there, and the strings live
        // until they are replaced, which takes a mutable reference.
        unsafe {
            let arg =
                call!(RedisModule_CommandFilterArgGet(self.0, c_int::try_from(at).unwrap_or(c_int::MAX)));
            if arg.is_null() {
                return &[];
            }
            string::bytes(arg)
        }
    }

    /// The client that sent the command, where the server tells.
    pub(super) fn client(&self) -> Option<u64> {
        // SAFETY: the filter's context is valid until the callback returns.
        unsafe { raw::RedisModule_CommandFilterGetClientId.map(|id| id(self.0)) }
    }

    pub(crate) fn replace(&mut self, at: usize, content: &[u8]) {
        let new = std::mem::ManuallyDrop::new(Str::new(content));
        // SAFETY: as in `len`; the server takes the string over.
        unsafe {
            call!(RedisModule_CommandFilterArgReplace(
                self.0,
                c_int::try_from(at).unwrap_or(c_int::MAX),
                new.as_ptr()
            ))
        };
    }
}

/// Sees the commands of all clients whose name begins with a C.
pub(crate) trait CommandFilter {
    fn filter(command: &mut Filtered);
}

/// Registers a filter for what clients send, not for what modules call. False if the server refuses.
pub(crate) fn register<F: CommandFilter>(ctx: Ctx) -> bool {
    unsafe extern "C" fn filter<F: CommandFilter>(command: *mut raw::RedisModuleCommandFilterCtx) {
        // This runs for every command of every client: leave at once. CONFIG and COPY are all that matters.
        if matches!(Filtered(command).bytes(0), [b'c' | b'C', ..]) {
            guard(|| {
                lent_client::look_at(&Filtered(command));
                F::filter(&mut Filtered(command));
            });
        }
    }
    let flags = raw::REDISMODULE_CMDFILTER_NOSELF.cast_signed();
    // SAFETY: the callback has the type that the server calls it with.
    unsafe { !call!(RedisModule_RegisterCommandFilter(ctx.0, Some(filter::<F>), flags)).is_null() }
}
