// SPDX-License-Identifier: MIT

//! The arguments of a command, as a table. It is the source of error texts, `LOCK.HELP`, `COMMAND DOCS`, the
//! pages of `docs/commands`, and the registration with the server.

use std::ffi::{c_int, CStr};
use std::ptr;

use redis_module::raw;

/// An argument, or a group of arguments.
pub(crate) struct Argument {
    /// The name of the value; for a bare keyword, the name of the argument.
    name: &'static CStr,
    /// The keyword before the value, or the bare keyword.
    token: Option<&'static CStr>,
    kind: ArgumentKind,
    is_optional: bool,
    is_multiple: bool,
    /// The end of a sentence whose beginning is the argument.
    meaning: &'static CStr,
}

/// The type of an argument.
pub(crate) enum ArgumentKind {
    /// The key of the lock.
    Key,
    Text,
    Integer,
    /// A pattern in the syntax of `KEYS`.
    Pattern,
    /// A bare keyword.
    Token,
    OneOf(&'static [Argument]),
    /// All of these, in this order.
    Block(&'static [Argument]),
}

impl Argument {
    pub(crate) const fn new(name: &'static CStr, kind: ArgumentKind, meaning: &'static CStr) -> Argument {
        Argument { name, token: None, kind, is_optional: false, is_multiple: false, meaning }
    }

    /// Creates a bare keyword.
    pub(crate) const fn keyword(
        name: &'static CStr,
        token: &'static CStr,
        meaning: &'static CStr,
    ) -> Argument {
        Argument::new(name, ArgumentKind::Token, meaning).after(token)
    }

    /// Sets the keyword before the value.
    pub(crate) const fn after(mut self, token: &'static CStr) -> Argument {
        self.token = Some(token);
        self
    }

    /// Replaces the meaning.
    pub(crate) const fn with_meaning(mut self, meaning: &'static CStr) -> Argument {
        self.meaning = meaning;
        self
    }

    pub(crate) const fn optional(mut self) -> Argument {
        self.is_optional = true;
        self
    }

    pub(crate) const fn multiple(mut self) -> Argument {
        self.is_multiple = true;
        self
    }

    /// The end of a sentence whose beginning is the argument.
    pub(crate) fn meaning(&self) -> &'static str {
        text(self.meaning)
    }

    /// The arguments of a group.
    pub(crate) fn parts(&self) -> &'static [Argument] {
        match self.kind {
            ArgumentKind::OneOf(parts) | ArgumentKind::Block(parts) => parts,
            _ => &[],
        }
    }

    /// The keyword of the argument, or its name.
    pub(crate) fn title(&self) -> String {
        match self.kind {
            ArgumentKind::OneOf(parts) => parts.iter().map(Argument::title).collect::<Vec<_>>().join(" or "),
            ArgumentKind::Block([first, ..]) => first.title(),
            _ => text(self.token.unwrap_or(self.name)).to_owned(),
        }
    }

    /// The syntax in the notation of the Redis reference.
    pub(crate) fn syntax(&self) -> String {
        let syntax = self.syntax_without_brackets();
        match self.kind {
            _ if self.is_optional && self.is_multiple => format!("[{syntax} [{syntax} ...]]"),
            _ if self.is_multiple => format!("{syntax} [{syntax} ...]"),
            _ if self.is_optional => format!("[{syntax}]"),
            ArgumentKind::OneOf(_) => format!("<{syntax}>"),
            _ => syntax,
        }
    }

    /// The syntax in the notation of the Redis reference, without the outer brackets.
    pub(crate) fn syntax_without_brackets(&self) -> String {
        let all = |parts: &[Argument], between| {
            parts.iter().map(Argument::syntax).collect::<Vec<_>>().join(between)
        };
        let value = match self.kind {
            ArgumentKind::OneOf(parts) => Some(all(parts, " | ")),
            ArgumentKind::Block(parts) => Some(all(parts, " ")),
            ArgumentKind::Token => None,
            _ => Some(text(self.name).to_owned()),
        };
        let words = [self.token.map(|token| text(token).to_owned()), value];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Minimum number of words.
    const fn min_words(&self) -> c_int {
        let value = match self.kind {
            ArgumentKind::Token => 0,
            ArgumentKind::OneOf(parts) => {
                let (mut least, mut at) = (c_int::MAX, 0);
                while at < parts.len() {
                    let words = parts[at].min_words();
                    least = if words < least { words } else { least };
                    at += 1;
                }
                least
            }
            ArgumentKind::Block(parts) => min_words(parts),
            _ => 1,
        };
        value + self.token.is_some() as c_int
    }

    /// Whether the number of words varies.
    const fn has_variable_length(&self) -> bool {
        let varies_inside = match self.kind {
            ArgumentKind::Block(parts) => has_variable_length(parts),
            ArgumentKind::OneOf(parts) => {
                let (mut varies, mut at) = (has_variable_length(parts), 0);
                while at < parts.len() {
                    varies |= parts[at].min_words() != parts[0].min_words();
                    at += 1;
                }
                varies
            }
            _ => false,
        };
        self.is_optional || self.is_multiple || varies_inside
    }

    /// Converts the argument for the module API. The members of a group are stored in `parts`, which must
    /// live as long as the result.
    fn to_raw(&self, parts: &mut RawArguments) -> raw::RedisModuleCommandArg {
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let subargs = match self.parts() {
            [] => ptr::null_mut(),
            own => parts.keep(own),
        };
        raw::RedisModuleCommandArg {
            name: self.name.as_ptr(),
            type_: match self.kind {
                ArgumentKind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
                ArgumentKind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
                ArgumentKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                ArgumentKind::Pattern => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PATTERN,
                ArgumentKind::Token => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
                ArgumentKind::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
                ArgumentKind::Block(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
            },
            // All keys of a command belong to the same key specification.
            key_spec_index: if matches!(self.kind, ArgumentKind::Key) { 0 } else { -1 },
            token: self.token.map_or(ptr::null(), CStr::as_ptr),
            summary: self.meaning.as_ptr(),
            since: ptr::null(),
            flags: (flag(self.is_optional, raw::REDISMODULE_CMD_ARG_OPTIONAL)
                | flag(self.is_multiple, raw::REDISMODULE_CMD_ARG_MULTIPLE))
            .cast_signed(),
            deprecated_since: ptr::null(),
            subargs,
            display_text: ptr::null(),
        }
    }
}

/// Minimum number of words of these arguments.
const fn min_words(arguments: &[Argument]) -> c_int {
    let (mut sum, mut at) = (0, 0);
    while at < arguments.len() {
        if !arguments[at].is_optional {
            sum += arguments[at].min_words();
        }
        at += 1;
    }
    sum
}

const fn has_variable_length(arguments: &[Argument]) -> bool {
    let (mut more, mut at) = (false, 0);
    while at < arguments.len() {
        more |= arguments[at].has_variable_length();
        at += 1;
    }
    more
}

/// Converts a C string; invalid UTF-8, which the module never uses, becomes an empty string.
pub(crate) const fn text(text: &'static CStr) -> &'static str {
    match text.to_str() {
        Ok(text) => text,
        Err(_) => "",
    }
}

/// The arguments of a command.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    /// The first arguments, in this order.
    pub(crate) positional: &'static [Argument],
    /// The following arguments, in any order.
    pub(crate) options: &'static [Argument],
}

impl Arguments {
    pub(crate) const NONE: Arguments = Arguments { positional: &[], options: &[] };

    pub(crate) fn iter(self) -> impl Iterator<Item = &'static Argument> {
        self.positional.iter().chain(self.options)
    }

    /// The arity as in `COMMAND INFO`: the number of words including the command's name; negative if it is a minimum.
    pub(crate) const fn arity(self) -> c_int {
        let fewest = 1 + min_words(self.positional) + min_words(self.options);
        if has_variable_length(self.positional) || has_variable_length(self.options) {
            -fewest
        } else {
            fewest
        }
    }

    /// Calls `body` with the arguments in the format of the module API: null if there are none, otherwise an array that
    /// ends with zeros.
    pub(in crate::server) fn with_raw<T>(self, body: impl FnOnce(*mut raw::RedisModuleCommandArg) -> T) -> T {
        let mut parts = RawArguments(Vec::new());
        let is_empty = self.iter().next().is_none();
        body(if is_empty { ptr::null_mut() } else { parts.keep(self.iter()) })
    }
}

/// Owner of the argument arrays that point to each other.
struct RawArguments(Vec<Box<[raw::RedisModuleCommandArg]>>);

impl RawArguments {
    /// Creates an array that ends with zeros and lives as long as `self`.
    fn keep(
        &mut self,
        arguments: impl IntoIterator<Item = &'static Argument>,
    ) -> *mut raw::RedisModuleCommandArg {
        // SAFETY: zero is valid for every field.
        let end: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
        let mut list: Vec<_> = arguments.into_iter().map(|argument| argument.to_raw(self)).collect();
        list.push(end);
        let mut list = list.into_boxed_slice();
        let start = list.as_mut_ptr();
        self.0.push(list);
        start
    }
}
