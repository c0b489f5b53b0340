// SPDX-License-Identifier: MIT

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{cmd, Cmd, FromRedisValue, Value};

use crate::acquire::{Acquire, Phase};
use crate::clock::{after, now, Moment};
use crate::core::{default_name, random, Core, Event, Listener, OnError};
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Io, Tokio};
use crate::request::Request;
use crate::server::Server;
use crate::session::Session;

/// Settings of [`Locks`](crate::Locks).
#[derive(Default)]
#[must_use]
pub struct Settings {
    name: Option<String>,
    ttl: Option<Duration>,
    grace: Option<Duration>,
    patience: Option<Duration>,
    listener: Option<Box<Listener>>,
    on_error: Option<Box<OnError>>,
}

impl Settings {
    /// The defaults.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// The name of the session for operators; `<host>/<process>/<random>` by default.
    pub fn name(mut self, name: impl Into<String>) -> Settings {
        self.name = Some(name.into());
        self
    }

    /// The session ends if the process is silent for this time; 30 s by default.
    pub fn ttl(mut self, ttl: Duration) -> Settings {
        self.ttl = Some(ttl);
        self
    }

    /// The session ends if its connection stays closed for this time; 3 s by default. For this time after each heartbeat, its
    /// holds are proven to be held. With zero they end with the connection, and nothing is ever proven.
    pub fn grace(mut self, grace: Duration) -> Settings {
        self.grace = Some(grace);
        self
    }

    /// Limit for a try or a release, and for a wait without a limit, while no server answers; 5 s by default.
    pub fn patience(mut self, patience: Duration) -> Settings {
        self.patience = Some(patience);
        self
    }

    /// Is called with each [`Event`] by the task or thread that notices it. It must not block. It may release holds and try to
    /// acquire locks, but a wait inside it fails with [`ErrorKind::Misuse`]. A panic of it is logged.
    pub fn listener(mut self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Settings {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Is called with each error that disturbs the session, such as a broken connection. The session continues, so this is for
    /// logs. It must neither block nor panic.
    pub fn on_error(mut self, on_error: impl Fn(&Error) + Send + Sync + 'static) -> Settings {
        self.on_error = Some(Box::new(on_error));
        self
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { name, ttl, grace, patience, .. } = self;
        let mut debug = f.debug_struct("Settings");
        debug
            .field("name", name)
            .field("ttl", ttl)
            .field("grace", grace)
            .field("patience", patience)
            .finish_non_exhaustive()
    }
}

/// Ends the sessions with the last `Locks`, `Lock` and `Hold` that use them.
pub(crate) struct Handle<I: Io>(pub(crate) Arc<Core<I>>);

impl<I: Io> Drop for Handle<I> {
    fn drop(&mut self) {
        if self.0.is_forked() {
            return;
        }
        let sessions = std::mem::take(&mut *crate::io::locked(&self.0.sessions));
        for session in sessions.into_values() {
            let node = Arc::clone(&session);
            node.io.spawn(async move { session.close().await });
        }
    }
}

/// The locks of this process on a server. Clones share one session. All tasks and threads may use it.
///
/// The session ends with [`close`](Self::close), or with the last clone, lock and hold.
pub struct LocksOf<I: Io>(pub(crate) Arc<Handle<I>>);

impl<I: Io> Clone for LocksOf<I> {
    fn clone(&self) -> Self {
        LocksOf(Arc::clone(&self.0))
    }
}

impl<I: Io> LocksOf<I> {
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
        let locks = Self::build(server.into(), settings);
        let core = &locks.0 .0;
        if !core.grace.is_zero() && !(Duration::from_millis(100)..=core.ttl).contains(&core.grace) {
            return Err(Error::new(ErrorKind::Misuse, "grace must be 0, or at least 100 ms and at most ttl"));
        }
        Ok(locks)
    }

    fn build(server: Server, settings: Settings) -> Self {
        LocksOf(Arc::new(Handle(Arc::new(Core {
            server: Arc::new(server),
            name: settings.name.unwrap_or_else(default_name),
            ttl: settings.ttl.unwrap_or(Duration::from_secs(30)),
            grace: settings.grace.unwrap_or(Duration::from_secs(3)),
            patience: settings.patience.unwrap_or(Duration::from_secs(5)),
            listener: settings.listener,
            on_error: settings.on_error,
            unique: random(),
            process: std::process::id(),
            sessions: Mutex::default(),
            handed_over: Mutex::default(),
        }))))
    }

    /// A lock with default options. The key may be any bytes.
    pub fn lock(&self, key: impl Into<Vec<u8>>) -> LockOf<I> {
        self.lock_all([key])
    }

    /// Several locks that are granted together or not at all, without deadlocks in any order.
    pub fn lock_all<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) -> LockOf<I> {
        let keys = keys.into_iter().map(Into::into).collect();
        LockOf { handle: Arc::clone(&self.0), request: Request { keys, ..Request::default() } }
    }
}

impl<I: Io> fmt::Debug for LocksOf<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("name", &self.0 .0.name).finish_non_exhaustive()
    }
}

/// A lock, or several locks, with options. Wrong options make every acquire fail with [`ErrorKind::Misuse`], before it sends
/// anything.
#[must_use = "this acquires nothing yet: call acquire(), try_acquire() or with()"]
pub struct LockOf<I: Io> {
    pub(crate) handle: Arc<Handle<I>>,
    request: Request,
}

impl<I: Io> Clone for LockOf<I> {
    fn clone(&self) -> Self {
        LockOf { handle: Arc::clone(&self.handle), request: self.request.clone() }
    }
}

impl<I: Io> LockOf<I> {
    /// The limit of the wait; none by default. Zero does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.request.wait = Some(wait);
        self
    }

    /// The time after which a hold ends by itself. By default the server renews the hold while this process lives.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.lease = Some(lease);
        self
    }

    /// The age at which the server stops the renewals of a hold; none by default.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.request.max_hold = Some(max_hold);
        self
    }

    /// Admits other shared holders.
    pub fn shared(mut self) -> Self {
        self.request.shared = true;
        self
    }

    /// Admits at most this number of holders, for a semaphore.
    pub fn limit(mut self, limit: u32) -> Self {
        self.request.limit = Some(limit);
        self
    }

    /// Gives each hold a [`token`](HoldOf::token) greater than those of all earlier holds.
    pub fn fence(mut self) -> Self {
        self.request.fence = true;
        self
    }

    /// Lets an owner acquire a lock that it holds. By default that fails with [`ErrorKind::Deadlock`].
    pub fn reentrant(mut self) -> Self {
        self.request.reentrant = true;
        self
    }

    /// The name of the holder on the server. By default each tokio task, or thread outside of a task, has one, so that the server
    /// detects deadlocks.
    pub fn owner(mut self, owner: impl Into<Vec<u8>>) -> Self {
        self.request.owner = Some(owner.into());
        self
    }

    /// The name of the lock for the listener; none by default.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.request.label = Some(label.into());
        self
    }

    pub(crate) fn core(&self) -> &Arc<Core<I>> {
        &self.handle.0
    }

    pub(crate) async fn ask(
        &self,
        wait: Option<Duration>,
        on_ask: impl Fn(&Arc<Acquire<I>>) -> Result<()> + Send,
    ) -> Result<Option<HoldOf<I>>> {
        let request = Arc::new(self.request.clone());
        let acquire = self.core().acquire(&request, wait, on_ask).await?;
        Ok(acquire.map(|acquire| self.hold(acquire)))
    }

    fn hold(&self, acquire: Arc<Acquire<I>>) -> HoldOf<I> {
        HoldOf { handle: Arc::clone(&self.handle), acquire, is_scoped: false }
    }

    pub(crate) async fn demand(
        &self,
        on_ask: impl Fn(&Arc<Acquire<I>>) -> Result<()> + Send,
    ) -> Result<HoldOf<I>> {
        let wait = self.request.wait;
        let kind = if wait == Some(Duration::ZERO) { ErrorKind::Busy } else { ErrorKind::TimedOut };
        let hold = self.ask(wait, on_ask).await?;
        hold.ok_or_else(|| self.request.error(kind, "another owner holds the lock"))
    }

    pub(crate) async fn attach_to(&self, ticket: &str) -> Result<HoldOf<I>> {
        let acquire = self.core().attach(&Arc::new(self.request.clone()), ticket).await?;
        Ok(self.hold(acquire))
    }

    async fn call(&self, name: &str) -> Result<Value> {
        self.request.check()?;
        let mut call = cmd(name);
        call.arg(&self.request.keys[0]);
        self.core().execute(&self.request.keys[0], call).await
    }

    pub(crate) async fn info(&self) -> Result<Option<HashMap<String, Value>>> {
        parse(self.call("LOCK.INFO").await?)
    }

    pub(crate) async fn break_all(&self) -> Result<bool> {
        parse(self.call("LOCK.BREAK").await?)
    }
}

fn parse<T: FromRedisValue>(value: Value) -> Result<T> {
    T::from_redis_value(value).map_err(|error| redis::RedisError::from(error).into())
}

impl<I: Io> fmt::Debug for LockOf<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lock").field(&self.request).finish()
    }
}

/// A lock that is held.
///
/// A hold that is dropped without [`release`](Self::release) is released in the background, with a warning in the log.
#[must_use = "the lock is released if its hold is dropped"]
pub struct HoldOf<I: Io> {
    handle: Arc<Handle<I>>,
    acquire: Arc<Acquire<I>>,
    pub(crate) is_scoped: bool,
}

impl<I: Io> HoldOf<I> {
    fn core(&self) -> &Arc<Core<I>> {
        &self.handle.0
    }

    /// The key of the lock, or of the first of several locks.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.acquire.request.keys[0]
    }

    /// The name of the holder on the server.
    #[must_use]
    pub fn owner(&self) -> &[u8] {
        &self.acquire.owner
    }

    /// With [`fence`](LockOf::fence), a number greater than those of all earlier holds. Otherwise None.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.tokens().first().copied()
    }

    /// With [`fence`](LockOf::fence), the tokens in the order of the keys.
    #[must_use]
    pub fn tokens(&self) -> Vec<u64> {
        self.acquire.now().tokens.clone()
    }

    /// Whether the hold ended before its release, so that another owner may have the lock. Always true in a forked child.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.core().is_forked() || self.acquire.is_lost()
    }

    /// The reason why the hold is over, such as `released`, `broken`, `deleted`, or `expired` by the local clock. None while the
    /// lock is held.
    #[must_use]
    pub fn end_reason(&self) -> Option<String> {
        self.acquire.end_reason()
    }

    /// The time for which no other owner can have the lock, even if the network fails.
    ///
    /// Zero means that nothing is proven: the hold is in jeopardy, lost or released, or the session has a `grace` of zero.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        if self.is_lost() {
            return Duration::ZERO;
        }
        Session::valid_for(&self.acquire)
    }

    pub(crate) async fn end(&self) -> Result<()> {
        if self.core().is_forked() {
            return Err(self
                .acquire
                .request
                .error(ErrorKind::Lost, "the hold belongs to the parent of this process"));
        }
        Session::release(self.core(), &self.acquire).await
    }

    pub(crate) async fn renew(&self, lease: Option<Duration>) -> Result<()> {
        let request = &self.acquire.request;
        self.core().check_process()?;
        if lease.is_some() && request.lease.is_none() {
            let text = "the server renews this hold; acquire it with a lease to set one";
            return Err(request.error(ErrorKind::Misuse, text));
        }
        let lease = lease.or(request.lease);
        Request { lease, ..(**request).clone() }.check()?;
        if self.acquire.is_lost() {
            return Err(self.acquire.lost());
        }
        Session::renew(self.core(), &self.acquire, lease).await
    }

    pub(crate) async fn ticket(&self) -> Result<String> {
        self.core().ticket(&self.acquire).await
    }

    pub(crate) async fn guarded<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let request = &self.acquire.request;
        if self.is_lost() {
            return Err(self.acquire.lost());
        }
        if request.several() {
            return Err(request.error(ErrorKind::Misuse, "a guarded command works with one lock"));
        }
        let mut call = cmd("LOCK.GUARD");
        call.arg(self.key()).arg("OWNER").arg(self.owner());
        for word in command.args_iter() {
            match word {
                redis::Arg::Simple(word) => call.arg(word),
                _ => return Err(request.error(ErrorKind::Misuse, "a guarded command cannot have a cursor")),
            };
        }
        parse(self.core().execute(self.key(), call).await?)
    }

    pub(crate) async fn wait_end(&self, until: Moment) -> bool {
        self.core().wait_end(&self.acquire, until).await;
        self.is_lost()
    }

    pub(crate) fn loss(&self) -> Error {
        self.acquire.lost()
    }
}

impl<I: Io> Drop for HoldOf<I> {
    fn drop(&mut self) {
        if self.core().is_forked() {
            return;
        }
        let is_held = {
            let state = self.acquire.now();
            state.phase == Phase::Held && !state.handed_over
        };
        if is_held {
            if !self.is_scoped {
                log::warn!("{self:?} was dropped without a release; call release(), or use with()");
            }
            self.acquire.abandon("released");
        }
    }
}

impl<I: Io> fmt::Debug for HoldOf<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(self.key());
        f.debug_struct("Hold").field("key", &key).field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

fn anyone<I: Io>(_: &Arc<Acquire<I>>) -> Result<()> {
    Ok(())
}

impl LocksOf<Tokio> {
    /// Ends all waits and renewed holds, the session and its task. A hold with a lease remains until its lease ends.
    pub async fn close(&self) {
        self.0 .0.close().await;
    }
}

impl LockOf<Tokio> {
    /// Waits for the lock, first come, first served.
    ///
    /// To cancel the wait, drop the future. Then nothing waits, and nothing is held.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] after the limit of the wait, or [`ErrorKind::Busy`] if that is zero; [`ErrorKind::Deadlock`],
    /// [`ErrorKind::Cancelled`] if the locks are closed, [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub async fn acquire(&self) -> Result<HoldOf<Tokio>> {
        self.demand(anyone).await
    }

    /// The hold, or None if another owner has the lock. Does not wait.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Deadlock`], [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub async fn try_acquire(&self) -> Result<Option<HoldOf<Tokio>>> {
        self.ask(Some(Duration::ZERO), anyone).await
    }

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
        body: impl AsyncFnOnce(&HoldOf<Tokio>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut hold = self.acquire().await?;
        hold.is_scoped = true;
        let result = body(&hold).await;
        let released = hold.release().await;
        let result = result?;
        released?;
        Ok(result)
    }

    /// Takes over a hold that another process has [handed over](HoldOf::hand_over).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold has ended; [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub async fn attach(&self, ticket: &str) -> Result<HoldOf<Tokio>> {
        self.attach_to(ticket).await
    }

    /// The reply of `LOCK.INFO`: holders, waiters and more. None if the lock is free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub async fn query(&self) -> Result<Option<HashMap<String, Value>>> {
        self.info().await
    }

    /// Takes the lock from its holders. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Misuse`] and [`ErrorKind::Unavailable`].
    pub async fn force_release(&self) -> Result<bool> {
        self.break_all().await
    }
}

impl HoldOf<Tokio> {
    /// Releases exactly this hold. May be called again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold ended before. [`ErrorKind::Unavailable`] if no server answered within the patience: then
    /// the release continues in the background.
    pub async fn release(&self) -> Result<()> {
        self.end().await
    }

    /// Sets the lease, from now. Without an argument, repeats the lease of the lock, or checks a renewed hold.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`], [`ErrorKind::Unavailable`], or [`ErrorKind::Misuse`] if a lease is given for a renewed hold.
    pub async fn extend(&self, lease: impl Into<Option<Duration>>) -> Result<()> {
        self.renew(lease.into()).await
    }

    /// Waits until the hold is lost, and returns that error. Waits for ever if the hold is released. Use it in `select!`.
    pub async fn lost(&self) -> Error {
        if !self.wait_end(Moment::MAX).await {
            std::future::pending::<()>().await;
        }
        self.loss()
    }

    /// Returns a ticket, with which another process takes over this hold by [`attach`](LockOf::attach).
    ///
    /// Until then this process keeps the hold alive. `release` does nothing any longer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the hold has ended, [`ErrorKind::Misuse`] for several locks, and [`ErrorKind::Unavailable`].
    pub async fn hand_over(&self) -> Result<String> {
        self.ticket().await
    }

    /// Runs a Redis command in one step with the check that this owner holds the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the owner does not hold the lock, and errors of the command.
    pub async fn guard<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        self.guarded(command).await
    }
}

pub(crate) fn deadline(limit: Duration) -> Moment {
    if now() == Moment::MAX {
        Moment::ZERO
    } else {
        after(limit)
    }
}
