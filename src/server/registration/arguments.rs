// SPDX-License-Identifier: MIT

//! What a command takes, as a table. It is what error texts, `LOCK.HELP`, `COMMAND DOCS` and the pages of `docs/commands` are made
//! from, and what the server is told when the command is registered.

use std::ffi::{c_int, CStr};
use std::ptr;

use redis_module::raw;

/// An argument, or several that belong together.
pub(crate) struct Argument {
    /// What its value is called; itself, if it has none.
    name: &'static CStr,
    /// The word before its value, or the word alone.
    token: Option<&'static CStr>,
    kind: ArgumentKind,
    is_optional: bool,
    is_multiple: bool,
    /// What it means, as the end of a sentence that begins with it.
    meaning: &'static CStr,
}

/// What an argument is.
pub(crate) enum ArgumentKind {
    /// The key of the lock.
    Key,
    Text,
    Integer,
    /// As `KEYS` takes it.
    Pattern,
    /// A word that stands for itself.
    Token,
    OneOf(&'static [Argument]),
    /// All of these, in this order.
    Block(&'static [Argument]),
}

impl Argument {
    pub(crate) const fn new(name: &'static CStr, kind: ArgumentKind, meaning: &'static CStr) -> Argument {
        Argument { name, token: None, kind, is_optional: false, is_multiple: false, meaning }
    }

    /// A word that stands for itself.
    pub(crate) const fn word(name: &'static CStr, token: &'static CStr, meaning: &'static CStr) -> Argument {
        Argument::new(name, ArgumentKind::Token, meaning).after(token)
    }

    /// Its value comes after this word.
    pub(crate) const fn after(mut self, token: &'static CStr) -> Argument {
        self.token = Some(token);
        self
    }

    /// The same, of which something else is said.
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

    /// What it means, as the end of a sentence that begins with it.
    pub(crate) fn meaning(&self) -> &'static str {
        text(self.meaning)
    }

    /// The arguments that it consists of.
    pub(crate) fn parts(&self) -> &'static [Argument] {
        match self.kind {
            ArgumentKind::OneOf(parts) | ArgumentKind::Block(parts) => parts,
            _ => &[],
        }
    }

    /// The word that it begins with, or its name.
    pub(crate) fn title(&self) -> String {
        match self.kind {
            ArgumentKind::OneOf(parts) => parts.iter().map(Argument::title).collect::<Vec<_>>().join(" or "),
            ArgumentKind::Block([first, ..]) => first.title(),
            _ => text(self.token.unwrap_or(self.name)).to_owned(),
        }
    }

    /// As Redis' own reference writes it.
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

    /// As Redis' own reference writes it, but for the brackets around it.
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

    /// How many words it has at least.
    const fn min_words(&self) -> c_int {
        let value = match self.kind {
            ArgumentKind::Token => 0,
            ArgumentKind::OneOf([first, ..]) => first.min_words(),
            ArgumentKind::Block(parts) => min_words(parts),
            _ => 1,
        };
        value + self.token.is_some() as c_int
    }

    /// As the server takes it, with its parts in `parts`, which have to live as long.
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
            // The one key that a command has.
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

/// How many words these have at least.
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
        more |= arguments[at].is_optional || arguments[at].is_multiple;
        at += 1;
    }
    more
}

/// As Rust has it. Of what is no UTF-8, which none of ours is, nothing.
pub(crate) const fn text(text: &'static CStr) -> &'static str {
    match text.to_str() {
        Ok(text) => text,
        Err(_) => "",
    }
}

/// The arguments of a command.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    /// First of all, in this order.
    pub(crate) positional: &'static [Argument],
    /// After them, in any order.
    pub(crate) options: &'static [Argument],
}

impl Arguments {
    pub(crate) const NONE: Arguments = Arguments { positional: &[], options: &[] };

    pub(crate) fn iter(self) -> impl Iterator<Item = &'static Argument> {
        self.positional.iter().chain(self.options)
    }

    /// As `COMMAND INFO` has it: how many words there are, with the command's name; negative if there may be more.
    pub(crate) const fn arity(self) -> c_int {
        let fewest = 1 + min_words(self.positional) + min_words(self.options);
        if has_variable_length(self.positional) || has_variable_length(self.options) {
            -fewest
        } else {
            fewest
        }
    }

    /// Calls `body` with the arguments as the server takes them: null if there are none, else a list that ends with zeros.
    pub(in crate::server) fn with_raw<T>(self, body: impl FnOnce(*mut raw::RedisModuleCommandArg) -> T) -> T {
        let mut parts = RawArguments(Vec::new());
        let is_empty = self.iter().next().is_none();
        body(if is_empty { ptr::null_mut() } else { parts.keep(self.iter()) })
    }
}

/// Lists of arguments that point to each other.
struct RawArguments(Vec<Box<[raw::RedisModuleCommandArg]>>);

impl RawArguments {
    /// Makes a list of these that ends with zeros and lives as long as `self`.
    fn keep(
        &mut self,
        arguments: impl IntoIterator<Item = &'static Argument>,
    ) -> *mut raw::RedisModuleCommandArg {
        // SAFETY: zero is a value for every field.
        let end: raw::RedisModuleCommandArg = unsafe { std::mem::zeroed() };
        let mut list: Vec<_> = arguments.into_iter().map(|argument| argument.to_raw(self)).collect();
        list.push(end);
        let mut list = list.into_boxed_slice();
        let start = list.as_mut_ptr();
        self.0.push(list);
        start
    }
}
