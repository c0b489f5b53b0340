// SPDX-License-Identifier: MIT

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{cmd, Cmd, FromRedisValue, Value};

use crate::acquire::Guard;
use crate::blocking::Canceller;
use crate::clock::{after, Moment};
use crate::core::{default_name, Core, Event};
use crate::error::{Error, ErrorKind, Result};
use crate::io::run;
use crate::request::Request;
use crate::server::Server;

/// Methods that set one option, and return the value.
macro_rules! options {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $kind:ty)?) sets $($field:ident).+ = $value:expr;)*) => {$(
        $(#[$about])*
        pub fn $name(mut self, $($argument: $kind)?) -> Self {
            self.$($field).+ = $value;
            self
        }
    )*};
}

type Listener = Box<dyn Fn(&Event) + Send + Sync>;
type OnError = Box<dyn Fn(&Error) + Send + Sync>;

/// Settings of [`Locks`](crate::Locks).
#[must_use]
pub struct Settings {
    pub(crate) name: String,
    pub(crate) ttl: Duration,
    pub(crate) grace: Duration,
    pub(crate) patience: Duration,
    pub(crate) listener: Option<Listener>,
    pub(crate) on_error: Option<OnError>,
}

impl Default for Settings {
    fn default() -> Settings {
        let [ttl, grace, patience] = [30, 3, 5].map(Duration::from_secs);
        Settings { name: default_name(), ttl, grace, patience, listener: None, on_error: None }
    }
}

impl Settings {
    /// The defaults.
    pub fn new() -> Settings {
        Settings::default()
    }

    options! {
        /// The name of the session for operators; `<host>/<process>/<random>` by default.
        name(name: impl Into<String>) sets name = name.into();

        /// The session ends if the process is silent for this time; 30 s by default.
        ttl(ttl: Duration) sets ttl = ttl;

        /// The session ends if its connection stays closed for this time; 3 s by default. For this time after each heartbeat, its
        /// holds are proven to be held. With zero they end with the connection, and nothing is ever proven.
        grace(grace: Duration) sets grace = grace;

        /// Limit for a try or a release, and for a wait without a limit, while no server answers; 5 s by default.
        patience(patience: Duration) sets patience = patience;

        /// Is called with each [`Event`]. The task or thread whose call causes the event calls it. A thread of the package calls
        /// it with all other events, in their order. It may release holds and try to acquire locks, but a wait inside it fails
        /// with [`ErrorKind::Misuse`]. A panic of it is logged.
        listener(listener: impl Fn(&Event) + Send + Sync + 'static) sets listener = Some(Box::new(listener));

        /// Is called with each error that disturbs the session, such as a broken connection. The session continues, so this is
        /// for logs. It must not block. A panic of it is logged.
        on_error(on_error: impl Fn(&Error) + Send + Sync + 'static) sets on_error = Some(Box::new(on_error));
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { name, ttl, grace, patience, .. } = self;
        let mut debug = f.debug_struct("Settings");
        debug.field("name", name).field("ttl", ttl).field("grace", grace).field("patience", patience);
        debug.finish_non_exhaustive()
    }
}

/// Ends the sessions with the last `Locks`, `Lock` and `Hold` that use them.
struct Last(Arc<Core>);

impl Drop for Last {
    fn drop(&mut self) {
        let closed = self.0.close();
        if self.0.is_blocking {
            run(None, closed);
        }
    }
}

/// The locks of this process on a server. Clones share one session. All tasks and threads may use it.
///
/// The session ends with [`close`](Self::close), or with the last clone, lock and hold.
#[derive(Clone)]
pub struct LocksOf<const IS_BLOCKING: bool>(Arc<Last>);

impl<const IS_BLOCKING: bool> LocksOf<IS_BLOCKING> {
    /// The locks of a server, with default settings. The session opens at the first acquire.
    pub fn new(server: impl Into<Server>) -> Self {
        Self::build(server.into(), Settings::new())
    }

    /// The locks of a server.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] unless `grace` is zero, or at least 100 ms and at most `ttl`.
    pub fn with_settings(server: impl Into<Server>, settings: Settings) -> Result<Self> {
        if !settings.grace.is_zero() && !(Duration::from_millis(100)..=settings.ttl).contains(&settings.grace)
        {
            return Err(Error::new(ErrorKind::Misuse, "grace must be 0, or at least 100 ms and at most ttl"));
        }
        Ok(Self::build(server.into(), settings))
    }

    fn build(server: Server, settings: Settings) -> Self {
        LocksOf(Arc::new(Last(Arc::new(Core::new(server, settings, IS_BLOCKING)))))
    }

    fn core(&self) -> &Arc<Core> {
        &self.0 .0
    }

    /// A lock with default options. The key may be any bytes.
    pub fn lock(&self, key: impl Into<Vec<u8>>) -> LockOf<IS_BLOCKING> {
        self.lock_all([key])
    }

    /// Several locks that are granted together or not at all, without deadlocks in any order.
    pub fn lock_all<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) -> LockOf<IS_BLOCKING> {
        let keys = keys.into_iter().map(Into::into).collect();
        LockOf { locks: self.clone(), request: Request { keys, ..Request::default() } }
    }
}

impl<const IS_BLOCKING: bool> fmt::Debug for LocksOf<IS_BLOCKING> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("name", &self.core().settings.name).finish_non_exhaustive()
    }
}

/// A lock, or several locks, with options. Wrong options make every acquire fail with [`ErrorKind::Misuse`], before it sends
/// anything.
#[derive(Clone, Debug)]
#[must_use = "this acquires nothing yet: call acquire(), try_acquire() or with()"]
pub struct LockOf<const IS_BLOCKING: bool> {
    locks: LocksOf<IS_BLOCKING>,
    request: Request,
}

impl<const IS_BLOCKING: bool> LockOf<IS_BLOCKING> {
    options! {
        /// The limit of the wait; none by default. Zero does not wait.
        wait(wait: Duration) sets request.wait = Some(wait);

        /// The time after which a hold ends by itself. By default the server renews the hold while this process lives.
        lease(lease: Duration) sets request.lease = Some(lease);

        /// The age at which the server stops the renewals of a hold; none by default.
        max_hold(max_hold: Duration) sets request.max_hold = Some(max_hold);

        /// Admits other shared holders.
        shared() sets request.shared = true;

        /// Admits at most this number of holders, for a semaphore.
        limit(limit: u32) sets request.limit = Some(limit);

        /// Gives each hold a [`token`](HoldOf::token) greater than those of all earlier holds.
        fence() sets request.fence = true;

        /// Lets an owner acquire a lock that it holds. By default that fails with [`ErrorKind::Deadlock`].
        reentrant() sets request.reentrant = true;

        /// The name of the holder on the server. By default each tokio task, or thread outside of a task, has one, so that the
        /// server detects deadlocks.
        owner(owner: impl Into<Vec<u8>>) sets request.owner = Some(owner.into());

        /// The name of the lock for the listener; none by default.
        label(label: impl Into<String>) sets request.label = Some(label.into());
    }

    fn core(&self) -> &Arc<Core> {
        self.locks.core()
    }

    fn hold(&self, guard: Guard) -> HoldOf<IS_BLOCKING> {
        HoldOf { guard, locks: self.locks.clone(), is_scoped: false }
    }

    async fn ask(&self, wait: Option<Duration>) -> Result<Option<HoldOf<IS_BLOCKING>>> {
        let guard = self.core().acquire(&Arc::new(self.request.clone()), wait).await?;
        Ok(guard.map(|guard| self.hold(guard)))
    }

    async fn demand(&self) -> Result<HoldOf<IS_BLOCKING>> {
        let wait = self.request.wait;
        let kind = if wait == Some(Duration::ZERO) { ErrorKind::Busy } else { ErrorKind::TimedOut };
        let hold = self.ask(wait).await?;
        hold.ok_or_else(|| self.request.error(kind, "another owner holds the lock"))
    }

    async fn take(&self, ticket: &str) -> Result<HoldOf<IS_BLOCKING>> {
        Ok(self.hold(self.core().attach(&Arc::new(self.request.clone()), ticket).await?))
    }

    async fn call<T: FromRedisValue>(&self, name: &str) -> Result<T> {
        self.request.check()?;
        let key = &*self.request.keys[0];
        parse(self.core().execute(key, cmd(name).arg(key)).await?)
    }
}

fn parse<T: FromRedisValue>(value: Value) -> Result<T> {
    T::from_redis_value(value).map_err(|error| redis::RedisError::from(error).into())
}

/// A lock that is held.
///
/// A hold that is dropped without [`release`](Self::release) is released in the background, with a warning in the log.
#[must_use = "the lock is released if its hold is dropped"]
pub struct HoldOf<const IS_BLOCKING: bool> {
    // Dropped before the locks.
    guard: Guard,
    locks: LocksOf<IS_BLOCKING>,
    is_scoped: bool,
}

impl<const IS_BLOCKING: bool> HoldOf<IS_BLOCKING> {
    fn core(&self) -> &Arc<Core> {
        self.locks.core()
    }

    fn request(&self) -> &Request {
        &self.guard.claim.request
    }

    /// The key of the lock, or of the first of several locks.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.request().keys[0]
    }

    /// The name of the holder on the server.
    #[must_use]
    pub fn owner(&self) -> &[u8] {
        &self.guard.claim.owner
    }

    /// With [`fence`](LockOf::fence), a number greater than those of all earlier holds. Otherwise None.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.tokens().first().copied()
    }

    /// With [`fence`](LockOf::fence), the tokens in the order of the keys.
    #[must_use]
    pub fn tokens(&self) -> Vec<u64> {
        self.guard.claim.tokens.get().cloned().unwrap_or_default()
    }

    /// Whether the hold ended before its release, so that another owner may have the lock. Always true in a forked child.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        let core = self.core();
        core.is_forked() || core.update(|state| core.is_lost(state, &self.guard.claim))
    }

    /// The reason why the hold is over, such as `released`, `broken`, `deleted`, or `expired` by the local clock. None while the
    /// lock is held.
    #[must_use]
    pub fn end_reason(&self) -> Option<String> {
        let reason = self.guard.claim.reason.get().cloned();
        reason.or_else(|| self.is_lost().then(|| "expired".to_owned()))
    }

    /// The time for which no other owner can have the lock, even if the network fails.
    ///
    /// Zero means that nothing is proven: the hold is in jeopardy, lost or released, or the session has a `grace` of zero.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        if self.is_lost() {
            Duration::ZERO
        } else {
            self.core().valid_for(&self.guard.claim)
        }
    }

    async fn end(&self) -> Result<()> {
        if self.core().is_forked() {
            return Err(self
                .request()
                .error(ErrorKind::Lost, "the hold belongs to the parent of this process"));
        }
        self.core().release(&self.guard.claim).await
    }

    async fn renew(&self, lease: Option<Duration>) -> Result<()> {
        let request = self.request();
        self.core().check_process()?;
        if lease.is_some() && request.lease.is_none() {
            let text = "the server renews this hold; acquire it with a lease to set one";
            return Err(request.error(ErrorKind::Misuse, text));
        }
        let lease = lease.or(request.lease);
        Request { lease, ..request.clone() }.check()?;
        if self.is_lost() {
            return Err(self.guard.claim.lost());
        }
        self.core().renew(&self.guard.claim, lease).await
    }

    async fn guarded<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        if self.is_lost() {
            return Err(self.guard.claim.lost());
        }
        let misuse = |text| Err(self.request().error(ErrorKind::Misuse, text));
        if self.request().several() {
            return misuse("a guarded command works with one lock");
        }
        let mut call = cmd("LOCK.GUARD");
        call.arg(self.key()).arg("OWNER").arg(self.owner());
        for word in command.args_iter() {
            match word {
                redis::Arg::Simple(word) => call.arg(word),
                _ => return misuse("a guarded command cannot have a cursor"),
            };
        }
        parse(self.core().execute(self.key(), &call).await?)
    }
}

impl<const IS_BLOCKING: bool> Drop for HoldOf<IS_BLOCKING> {
    fn drop(&mut self) {
        let is_held = self.guard.claim.reason.get().is_none() && !self.core().is_forked();
        if is_held && !self.is_scoped {
            log::warn!("{self:?} was dropped without a release; call release(), or use with()");
        }
    }
}

impl<const IS_BLOCKING: bool> fmt::Debug for HoldOf<IS_BLOCKING> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(self.key());
        f.debug_struct("Hold").field("key", &key).field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

macro_rules! suspend {
    ($value:ident, $work:expr) => {
        $work.await
    };
}

macro_rules! block {
    ($value:ident, $work:expr) => {
        run($value.core().background(), $work)
    };
}

/// The methods that wait: for tasks they are `async`, for threads they block.
macro_rules! verbs {
    ($mode:literal, $wait:ident, $($async:ident)?) => {
        impl LocksOf<$mode> {
            /// Ends all waits and renewed holds, the session and its thread. A hold with a lease remains until its lease ends.
            pub $($async)? fn close(&self) {
                let closed = self.core().close();
                $wait!(self, closed);
            }
        }

        impl LockOf<$mode> {
            /// Waits for the lock, first come, first served.
            ///
            /// To cancel the wait of a task, drop the future. Threads have `acquire_with`. Then nothing waits, and nothing is
            /// held.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::TimedOut`] after the limit of the wait, or [`ErrorKind::Busy`] if that is zero;
            /// [`ErrorKind::Deadlock`], [`ErrorKind::Cancelled`] if the locks are closed meanwhile, [`ErrorKind::Misuse`] and
            /// [`ErrorKind::Unavailable`].
            pub $($async)? fn acquire(&self) -> Result<HoldOf<$mode>> {
                $wait!(self, self.demand())
            }

            /// The hold, or None if another owner has the lock. Does not wait.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Deadlock`], [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
            pub $($async)? fn try_acquire(&self) -> Result<Option<HoldOf<$mode>>> {
                $wait!(self, self.ask(Some(Duration::ZERO)))
            }

            /// Takes over a hold that another process has [handed over](HoldOf::hand_over).
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`] if the hold has ended; [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
            pub $($async)? fn attach(&self, ticket: &str) -> Result<HoldOf<$mode>> {
                $wait!(self, self.take(ticket))
            }

            /// The reply of `LOCK.INFO`: holders, waiters and more. None if the lock is free.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
            pub $($async)? fn query(&self) -> Result<Option<HashMap<String, Value>>> {
                $wait!(self, self.call("LOCK.INFO"))
            }

            /// Takes the lock from its holders. Returns whether there was one.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
            pub $($async)? fn force_release(&self) -> Result<bool> {
                $wait!(self, self.call("LOCK.BREAK"))
            }
        }

        impl HoldOf<$mode> {
            /// Releases exactly this hold. May be called again.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`] if the hold ended before. [`ErrorKind::Unavailable`] if no server answered within the
            /// patience: then the release continues in the background.
            pub $($async)? fn release(&self) -> Result<()> {
                $wait!(self, self.end())
            }

            /// Sets the lease, from now. Without an argument, repeats the lease of the lock, or checks a renewed hold.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`], [`ErrorKind::Unavailable`], or [`ErrorKind::Misuse`] if a lease is given for a renewed hold.
            pub $($async)? fn extend(&self, lease: impl Into<Option<Duration>>) -> Result<()> {
                $wait!(self, self.renew(lease.into()))
            }

            /// Returns a ticket, with which another process takes over this hold by [`attach`](LockOf::attach).
            ///
            /// Until then this process keeps the hold alive. `release` does nothing any longer.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`] if the hold has ended, [`ErrorKind::Misuse`] for several locks, and
            /// [`ErrorKind::Unavailable`].
            pub $($async)? fn hand_over(&self) -> Result<String> {
                $wait!(self, self.core().ticket(&self.guard.claim))
            }

            /// Runs a Redis command in one step with the check that this owner holds the lock.
            ///
            /// # Errors
            ///
            /// [`ErrorKind::Lost`] if the owner does not hold the lock, and errors of the command.
            pub $($async)? fn guard<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
                $wait!(self, self.guarded(command))
            }
        }
    };
}

verbs!(false, suspend, async);
verbs!(true, block,);

impl LockOf<false> {
    /// Runs a body while the lock is held. An error of the body is returned, even if the lock is lost.
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock_client::Locks) -> redis_lock_client::Result<()> {
    /// locks.lock("order:42").with(async |hold| hold.extend(None).await).await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of the body, of [`acquire`](Self::acquire), and of [`release`](HoldOf::release), as [`ErrorKind::Lost`].
    pub async fn with<T, E: From<Error>>(
        &self,
        body: impl AsyncFnOnce(&HoldOf<false>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut hold = self.acquire().await?;
        hold.is_scoped = true;
        let (result, released) = (body(&hold).await, hold.release().await);
        Ok((result?, released?).0)
    }
}

impl LockOf<true> {
    /// Runs a body while the lock is held. An error of the body is returned, even if the lock is lost.
    ///
    /// # Errors
    ///
    /// Those of the body, of [`acquire`](Self::acquire), and of [`release`](HoldOf::release), as [`ErrorKind::Lost`].
    pub fn with<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&HoldOf<true>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut hold = self.acquire()?;
        hold.is_scoped = true;
        let (result, released) = (body(&hold), hold.release());
        Ok((result?, released?).0)
    }

    /// Waits for the lock, first come, first served. Another thread can end the wait by the canceller.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`ErrorKind::Cancelled`].
    pub fn acquire_with(&self, canceller: &Canceller) -> Result<HoldOf<true>> {
        block!(self, canceller.limit(self.demand()))
    }
}

impl HoldOf<false> {
    /// Waits until the hold is lost, and returns that error. Waits for ever if the hold is released. Use it in `select!`.
    pub async fn lost(&self) -> Error {
        if !self.core().wait_end(&self.guard.claim, Moment::MAX).await {
            std::future::pending::<()>().await;
        }
        self.guard.claim.lost()
    }
}

impl HoldOf<true> {
    /// Waits until the hold is lost or released, for at most this time. Returns whether it is lost.
    pub fn wait_lost(&self, limit: Duration) -> bool {
        block!(self, self.core().wait_end(&self.guard.claim, after(limit)))
    }
}
