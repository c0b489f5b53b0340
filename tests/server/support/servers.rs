// SPDX-License-Identifier: MIT

//! The servers that the module is tested on. Each has one line here, and nothing else lists them: [`Flavor`] and the tests
//! are made of these lines, `tests/setup-servers.sh` unpacks what they name, and `tests/run.py` sorts the tests by them.
//!
//! * The name is what test functions are called.
//! * The program is in `target/servers/`, or, if no folder is named, an installed one, which is the Makefile's business.
//! * The package is Debian's, with the release that it comes from. `required` ones are to be there if `REQUIRE_ALL_SERVERS`
//!   is set. Debian 11 is at the end of its life: the one test that wants a server which is too old may do without. Redict is
//!   in no release yet, and may leave Debian again.
//! * The run says when the tests of a line run: `RUNS_OF_SERVERS` in `tests/run.py`. `make test` runs all tests of the `short` line,
//!   and those files of the `second` one where servers differ most. `.ci/run` adds the rest of it, and such files of `long` lines.
//!   `make test-all` adds `weekly` lines, and such files of `matrix` ones. `make test-matrix` runs everything. What is `too_old`
//!   must refuse the module.
//!
//! What a server can do follows from its kind and its version, see [`Flavor`].
//!
//! [`Flavor`]: super::Flavor

/// Calls a macro of this crate with what is given and all lines.
#[macro_export]
macro_rules! with_all_servers {
    ($macro:ident $given:tt) => { $crate::$macro! { $given
        // Name     Variant   Kind    Program                   Package                     Needed    Run
        { redis_7   Redis7    Redis   "redis-server"            "installed"                 required  short   }
        { redis_8   Redis8    Redis   "redis-8/redis-server"    "redis-tools/trixie"        required  weekly  }
        { redis_8_6 Redis8_6  Redis   "redis-8.6/redis-server"  "redis-tools/experimental"  required  long    }
        { valkey_8  Valkey8   Valkey  "valkey-8/valkey-server"  "valkey-tools/trixie"       required  second  }
        { valkey_9  Valkey9   Valkey  "valkey-9/valkey-server"  "valkey-tools/sid"          required  long    }
        { redict_7  Redict7   Redis   "redict-7/redict-server"  "redict-tools/sid"          optional  matrix  }
        { redis_6   Redis6    Redis   "redis-6/redis-server"    "redis-tools/bullseye"      optional  too_old }
    } };
}
