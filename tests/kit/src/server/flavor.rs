// SPDX-License-Identifier: MIT

//! The kinds and versions of servers, and their abilities.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::artifacts::root;

/// Generates [`Flavor`] from the lines of `list.rs`.
macro_rules! flavors {
    ([] $({ $name:ident $variant:ident $kind:ident $program:literal $package:literal $needed:ident $run:ident })*) => {
        /// The servers that the module is tested on, see [`list`](super::list).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Flavor { $($variant),* }

        impl Flavor {
            pub fn is_valkey(self) -> bool {
                let kind = match self { $(Flavor::$variant => stringify!($kind)),* };
                kind == "Valkey"
            }

            /// Returns the path in the server's line of `list.rs`.
            fn path(self) -> &'static str {
                match self { $(Flavor::$variant => $program),* }
            }

            fn is_required(self) -> bool {
                let needed = match self { $(Flavor::$variant => stringify!($needed)),* };
                needed == "required"
            }
        }

        /// The versions of the servers, determined on first use.
        static VERSIONS: [OnceLock<Option<(u32, u32)>>; [$($program),*].len()] =
            [const { OnceLock::new() }; [$($program),*].len()];
    };
}

crate::with_all_servers!([flavors] []);

impl Flavor {
    /// Returns the program of the server: an installed one, or one that `make servers` has unpacked.
    pub fn program(self) -> PathBuf {
        let path = Path::new(self.path());
        match path.parent() {
            Some(folder) if folder != Path::new("") => root().join("target/servers").join(path),
            _ => path.to_owned(),
        }
    }

    /// Returns major and minor version of the program, or `None` if the program does not run here.
    fn found(self) -> Option<(u32, u32)> {
        *VERSIONS[self as usize].get_or_init(|| {
            let output = Command::new(self.program()).arg("--version").stderr(Stdio::null()).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            let mut numbers = text.split_once("v=")?.1.split(['.', ' ']).map_while(|part| part.parse().ok());
            Some((numbers.next()?, numbers.next()?))
        })
    }

    /// Returns false and prints a line if the server is not installed. If `REQUIRE_ALL_SERVERS` is set and the
    /// server is required, panics instead.
    pub fn is_installed(self) -> bool {
        if self.found().is_some() {
            return true;
        }
        let required = std::env::var_os("REQUIRE_ALL_SERVERS").is_some() && self.is_required();
        assert!(!required, "{self:?} is not installed");
        eprintln!("SKIPPED: {self:?} is not installed, see `make setup`");
        false
    }

    /// Returns true for Redis of this version or later, and for any Valkey, which is derived from Redis 7.2.
    fn has_all_of_redis(self, version: (u32, u32)) -> bool {
        assert!(version <= (7, 2), "a version of Redis after 7.2 implies nothing for Valkey");
        self.is_valkey_or_redis(version)
    }

    /// Returns true for any Valkey, and for Redis of this version or later.
    fn is_valkey_or_redis(self, version: (u32, u32)) -> bool {
        self.is_valkey() || self.found() >= Some(version)
    }

    /// Whether `CLIENT UNBLOCK` can end a wait. On other servers it would race with a grant.
    pub fn may_unblock(self) -> bool {
        self.is_valkey_or_redis((7, 4))
    }

    /// Whether a module can assign ACL categories to its commands.
    pub fn lets_modules_choose_categories(self) -> bool {
        self.has_all_of_redis((7, 2))
    }

    /// Whether `ACL CAT` lists the commands of a module in a category. Redict 7.3 assigns them, but does not list them.
    pub fn lists_commands_of_modules(self) -> bool {
        self.is_valkey_or_redis((7, 4))
    }

    /// Whether a module can add an ACL category.
    pub fn lets_modules_make_categories(self) -> bool {
        self.is_valkey_or_redis((7, 4))
    }

    /// Whether `INFO stats` counts the iterations of the event loop.
    pub fn counts_its_cycles(self) -> bool {
        self.has_all_of_redis((7, 2))
    }

    /// Whether debug and module commands must be enabled in the configuration.
    pub(super) fn protects_commands(self) -> bool {
        self.has_all_of_redis((7, 0))
    }
}
