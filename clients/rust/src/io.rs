// SPDX-License-Identifier: MIT

//! Connections, and the thread that keeps sessions alive.

use std::cell::Cell;
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Connection, ConnectionLike, Pipeline, Value};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, watch, Semaphore};
use tokio::time::timeout;

use crate::clock::{after, left, now, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::server::Server;

/// Limit for one call without a reply. Then it is repeated on another connection.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Extra time for the reply to a call that waits in the server.
pub(crate) const REPLY_GRACE: Duration = Duration::from_secs(1);
/// The first and the longest pause before a call is repeated.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);
pub(crate) const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event that happens once.
#[derive(Debug)]
pub(crate) struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Gate {
        Gate(Semaphore::new(0))
    }
}

impl Gate {
    pub(crate) fn open(&self) {
        self.0.close();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.is_closed()
    }

    /// The result of some work, or None if the gate opens before.
    pub(crate) async fn limit<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut opened, mut work) = (pin!(self.0.acquire()), pin!(work));
        let first = poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => opened.as_mut().poll(context).map(|_| None),
        });
        first.await
    }
}

thread_local! {
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// The thread that keeps the sessions of some locks alive. So they depend on no runtime of the user.
#[derive(Clone)]
pub(crate) struct Background {
    pub(crate) handle: Handle,
    /// Without any of these, the thread ends.
    pub(crate) alive: mpsc::Sender<()>,
    pub(crate) ended: watch::Receiver<()>,
}

impl Background {
    pub(crate) fn start() -> Result<Background> {
        let failed = |error| Error::new(ErrorKind::Unavailable, format!("no thread: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let ((alive, mut users), (end, ended)) = (mpsc::channel(1), watch::channel(()));
        let handle = runtime.handle().clone();
        let work = move || {
            IS_BACKGROUND.set(true);
            runtime.block_on(users.recv());
            // A listener may still be at work.
            runtime.shutdown_background();
            drop(end);
        };
        thread::Builder::new().name("redis-lock".to_owned()).spawn(work).map_err(failed)?;
        Ok(Background { handle, alive, ended })
    }

    pub(crate) fn is_current() -> bool {
        IS_BACKGROUND.get()
    }
}

struct Woken(Thread, AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

/// The result of a future, for which this thread waits. The background serves its timers until then. Calls may be nested.
pub(crate) fn run<T>(background: Option<Background>, future: impl Future<Output = T>) -> T {
    let _entered = background.as_ref().map(|background| background.handle.enter());
    let woken = Arc::new(Woken(thread::current(), AtomicBool::new(true)));
    let (waker, mut future) = (Waker::from(Arc::clone(&woken)), pin!(tokio::task::unconstrained(future)));
    loop {
        while !woken.1.swap(false, Ordering::Acquire) {
            thread::park();
        }
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
    }
}

/// A node of a server, and its connections: one for the reader, and others for calls.
pub(crate) struct Node {
    server: Arc<Server>,
    pub(crate) name: String,
    reader: Shared,
    /// All calls of tasks share one connection.
    calls: Shared,
    /// Each call of a thread has a connection of its own, as it blocks that thread. Its limit for a reply is expensive to set.
    idle: Mutex<Vec<(Connection, Duration)>>,
}

/// A connection that tasks share.
#[derive(Default)]
struct Shared(tokio::sync::Mutex<Slot>);

#[derive(Default)]
struct Slot {
    connection: Option<MultiplexedConnection>,
    /// Grows with each connection.
    number: u64,
    failed: Option<(Moment, Error)>,
}

async fn connect(client: &Client) -> Result<MultiplexedConnection> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(CALL_TIMEOUT)).set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Sends a call to another server, over a connection of its own.
pub(crate) async fn ask(client: &Client, call: &Cmd) -> Result<Value> {
    let ask = async { Ok(connect(client).await?.send_packed_command(call).await?) };
    timeout(CALL_TIMEOUT, ask).await.unwrap_or_else(|_| Err(Error::no_reply()))
}

impl Node {
    pub(crate) fn new(server: Arc<Server>, name: String) -> Node {
        Node { server, name, reader: Shared::default(), calls: Shared::default(), idle: Mutex::default() }
    }

    /// The reply to a call of a task, or of a thread.
    pub(crate) async fn call(&self, call: &Cmd, limit: Duration, is_blocking: bool) -> Result<Value> {
        if is_blocking {
            return self.call_blocking(&call.get_packed_command(), limit).await;
        }
        let replies = self.exchange(&self.calls, slice::from_ref(call), limit).await?;
        replies.into_iter().next().unwrap_or_else(|| Err(Error::no_reply()))
    }

    async fn call_blocking(&self, call: &[u8], limit: Duration) -> Result<Value> {
        let idle = locked(&self.idle).pop();
        let (mut connection, usual) = match idle {
            Some(idle) => idle,
            None => {
                let client = self.server.client(&self.name).await.map_err(Error::unsent)?;
                let connection = client.get_connection_with_timeout(CALL_TIMEOUT.min(limit));
                let connection = connection.map_err(|error| Error::from(error).unsent())?;
                connection.set_write_timeout(Some(CALL_TIMEOUT))?;
                (connection, Duration::ZERO)
            }
        };
        if limit != usual {
            connection.set_read_timeout(Some(limit))?;
        }
        let reply = connection.req_packed_command(call);
        let reply = reply.and_then(Value::extract_error).map_err(Error::from);
        match &reply {
            // The server may have closed the other idle connections, too, or is no longer the primary.
            Err(error) if error.is_of_former_primary() || error.is_unanswered() => {
                locked(&self.idle).clear();
            }
            _ => locked(&self.idle).push((connection, limit)),
        }
        reply
    }

    /// The replies to calls over the reader's connection, in one round trip.
    pub(crate) async fn read(&self, calls: Vec<Cmd>, limit: Duration) -> Result<Vec<Result<Value>>> {
        self.exchange(&self.reader, &calls, limit).await
    }

    pub(crate) async fn disconnect(&self) {
        self.reader.close(None).await;
        self.calls.close(None).await;
        locked(&self.idle).clear();
    }

    async fn exchange(&self, shared: &Shared, calls: &[Cmd], limit: Duration) -> Result<Vec<Result<Value>>> {
        let until = after(limit);
        let connected = timeout(limit, self.connection(shared)).await;
        let (number, mut connection) = connected.unwrap_or_else(|_| Err(Error::no_reply().unsent()))?;
        let sent = async {
            let [call] = calls else {
                let mut pipeline = Pipeline::with_capacity(calls.len());
                for call in calls {
                    pipeline.add_command(call.clone());
                }
                return connection.send_packed_commands(&pipeline, 0, calls.len()).await;
            };
            Ok(vec![connection.send_packed_command(call).await?])
        };
        let replies = match timeout(left(until), sent).await {
            Ok(Ok(values)) => Ok(values
                .into_iter()
                .map(|value| value.extract_error().map_err(Error::from))
                .collect::<Vec<_>>()),
            Ok(Err(error)) if calls.len() == 1 && error.code().is_some() => Ok(vec![Err(error.into())]),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::no_reply()),
        };
        let is_usable = replies.as_ref().is_ok_and(|replies| {
            !replies.iter().any(|reply| reply.as_ref().is_err_and(Error::is_of_former_primary))
        });
        if !is_usable {
            shared.close(Some(number)).await;
        }
        replies
    }

    async fn connection(&self, shared: &Shared) -> Result<(u64, MultiplexedConnection)> {
        let mut slot = shared.0.lock().await;
        if let Some(connection) = &slot.connection {
            return Ok((slot.number, connection.clone()));
        }
        // Waiting calls share a failure, instead of repeating the attempt one after the other.
        if let Some((_, error)) = slot.failed.as_ref().filter(|(at, _)| !left(*at + RETRY_PAUSE).is_zero()) {
            return Err(error.clone());
        }
        let made = match self.server.client(&self.name).await {
            Ok(client) => connect(&client).await,
            Err(error) => Err(error),
        };
        let made = made.map_err(Error::unsent);
        slot.number += 1;
        slot.connection = made.as_ref().ok().cloned();
        slot.failed = made.as_ref().err().map(|error| (now(), error.clone()));
        Ok((slot.number, made?))
    }
}

impl Shared {
    async fn close(&self, number: Option<u64>) {
        let mut slot = self.0.lock().await;
        if number.is_none_or(|number| number == slot.number) {
            slot.connection = None;
        }
    }
}
