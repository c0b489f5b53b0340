//! Replies. Aggregates are announced with their length and followed by that many replies.

use crate::server::Ctx;

/// The reply to a command whose code failed; what happened stands in the server's log.
pub(crate) const INTERNAL_ERROR: &str = "ERR internal error, see the server's log";

impl<'a> Ctx<'a> {
    pub(crate) fn reply_integer(self, number: i64) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithLongLong(self.as_ptr(), number)) };
    }

    pub(crate) fn reply_null(self) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithNull(self.as_ptr())) };
    }

    pub(crate) fn reply_bulk(self, content: &[u8]) {
        // SAFETY: pointer and length are those of a slice.
        unsafe {
            call!(RedisModule_ReplyWithStringBuffer(self.as_ptr(), content.as_ptr().cast(), content.len()))
        };
    }

    pub(crate) fn reply_simple(self, text: &std::ffi::CStr) {
        // SAFETY: the text outlives the call.
        unsafe { call!(RedisModule_ReplyWithSimpleString(self.as_ptr(), text.as_ptr())) };
    }

    pub(crate) fn reply_array(self, len: usize) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithArray(self.as_ptr(), as_long(len))) };
    }

    /// A map of `len` pairs; a flat array for a client that speaks RESP2.
    pub(crate) fn reply_map(self, len: usize) {
        // SAFETY: the context is that of the running callback.
        unsafe { call!(RedisModule_ReplyWithMap(self.as_ptr(), as_long(len))) };
    }

    /// An error; the text begins with its prefix.
    pub(crate) fn reply_error(self, text: &str) {
        // A NUL would end the text early, so it ends there; clients' bytes come escaped.
        let text = std::ffi::CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default();
        // SAFETY: the text outlives the call.
        unsafe { call!(RedisModule_ReplyWithError(self.as_ptr(), text.as_ptr())) };
    }

    /// The server's own error for a wrong number of arguments, which names the command.
    pub(crate) fn reply_wrong_arity(self) {
        // SAFETY: the context is that of a running command.
        unsafe { call!(RedisModule_WrongArity(self.as_ptr())) };
    }
}

fn as_long(len: usize) -> std::ffi::c_long {
    std::ffi::c_long::try_from(len).unwrap_or(std::ffi::c_long::MAX)
}
