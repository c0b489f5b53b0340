// SPDX-License-Identifier: MIT

//! The servers that the module is tested on, one in each line. This is the only such list: [`Flavor`] and the tests are generated
//! from it, `tests/scripts/setup-servers.sh` unpacks the packages, and `tests/scripts/run.py` sorts the tests by run.
//!
//! * The name is the name of the test functions.
//! * The program is a file in `target/servers/`. A name without a folder is an installed program, which the Makefile installs.
//! * The package is Debian's, with its release. If `REQUIRE_ALL_SERVERS` is set, a `required` package must be present. Debian 11
//!   is near the end of its support, so the test with a server that is too old may be skipped. Redict is in no release yet, and
//!   may be removed from Debian.
//! * The run decides when the tests of a line run, see `RUNS_OF_SERVERS` in `tests/scripts/run.py`.
//!   - `make test` runs all tests of the `short` line, and the tests of the `second` line where servers differ most.
//!   - `.ci/run` adds the other tests of the `second` line, and the tests of `long` lines where servers differ most.
//!   - `make test-all` adds `weekly` lines, and the tests of `matrix` lines where servers differ most.
//!   - `make test-matrix` runs everything.
//!   - A server that is `too_old` must refuse the module.
//!
//! A server's abilities follow from its kind and its version, see [`Flavor`].
//!
//! [`Flavor`]: super::Flavor

/// Calls a macro, whose path is in brackets, with a token tree and all lines.
#[macro_export]
macro_rules! with_all_servers {
    ([$($macro:tt)*] $given:tt) => { $($macro)*! { $given
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
