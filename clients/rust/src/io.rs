// SPDX-License-Identifier: MIT

//! Connections, time and concurrency: what differs between tokio and threads. All other code is written once, as futures. Those
//! of threads never suspend: each call blocks the thread that makes it.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Connection, ConnectionLike, Pipeline, Value};
use tokio::runtime::Handle;

use crate::clock::{after, left, now, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::server::Server;

/// Limit for one call without a reply. Then it is repeated on another connection.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Extra time for the reply to a call that waits in the server.
pub(crate) const REPLY_GRACE: Duration = Duration::from_secs(1);
/// The first pause before a call is repeated.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);

pub(crate) type Replies = Vec<Result<Value>>;

/// A node of a server, and its connections: one for the reader, and others for calls.
pub trait Io: Send + Sync + Sized + 'static {
    fn new(server: Arc<Server>, node: String) -> Self;
    /// The replies to calls in one round trip. Fails if there is no reply.
    fn batch(&self, calls: Vec<Cmd>, limit: Duration) -> impl Future<Output = Result<Replies>> + Send;
    /// The reply to a call over the reader's connection.
    fn read(&self, call: Cmd, limit: Duration) -> impl Future<Output = Result<Value>> + Send;
    /// Closes the connections. The next ones may lead to another primary.
    fn disconnect(&self) -> impl Future<Output = ()> + Send;
    /// The result of a future, or None if the time is over before.
    fn timeout<F: Future + Send>(
        limit: Duration,
        future: F,
    ) -> impl Future<Output = Option<F::Output>> + Send;
    /// Sends a call to another server, over a connection of its own.
    fn ask(client: &Client, call: &Cmd) -> impl Future<Output = Result<Value>> + Send;
    /// Starts the reader.
    fn start(&self, reader: impl Future<Output = ()> + Send + 'static) -> Result<()>;
    /// Completes some work that its caller does not wait for.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static);
    /// Waits until the reader has ended, unless it is the caller.
    fn join(&self) -> impl Future<Output = ()> + Send;
    /// The task or thread that calls.
    fn unit() -> String;

    fn sleep(limit: Duration) -> impl Future<Output = ()> + Send {
        async move { _ = Self::timeout(limit, std::future::pending::<()>()).await }
    }

    /// The reply to a call.
    fn call(&self, call: Cmd, limit: Duration) -> impl Future<Output = Result<Value>> + Send {
        async move { self.batch(vec![call], limit).await?.pop().unwrap_or_else(|| Err(Error::no_reply())) }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pipeline(calls: Vec<Cmd>) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(calls.len());
    for call in calls {
        pipeline.add_command(call);
    }
    pipeline
}

fn replies(values: Vec<Value>) -> Replies {
    values.into_iter().map(|value| value.extract_error().map_err(Error::from)).collect()
}

fn first(values: Vec<Value>) -> Result<Value> {
    replies(values).pop().unwrap_or_else(|| Err(Error::no_reply()))
}

/// The locks of tokio tasks. All calls share one connection.
pub struct Tokio {
    server: Arc<Server>,
    node: String,
    calls: Shared,
    reader: Shared,
    started: Mutex<Option<(Handle, tokio::task::JoinHandle<()>)>>,
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

impl Tokio {
    async fn connection(&self, shared: &Shared) -> Result<(u64, MultiplexedConnection)> {
        let mut slot = shared.0.lock().await;
        if let Some(connection) = &slot.connection {
            return Ok((slot.number, connection.clone()));
        }
        // Waiting calls share a failure, instead of repeating the attempt one after the other.
        if let Some((_, error)) = slot.failed.as_ref().filter(|(at, _)| !left(*at + RETRY_PAUSE).is_zero()) {
            return Err(error.clone());
        }
        let made = match self.server.client::<Tokio>(&self.node).await {
            Ok(client) => connect(&client).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(connection) => {
                (slot.number, slot.connection) = (slot.number + 1, Some(connection.clone()));
                Ok((slot.number, connection))
            }
            Err(error) => {
                let error = error.unsent();
                slot.failed = Some((now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn exchange(&self, shared: &Shared, calls: Vec<Cmd>, limit: Duration) -> Result<Vec<Value>> {
        let (count, calls) = (calls.len(), pipeline(calls));
        let used = Mutex::new(None);
        let exchange = async {
            let (number, mut connection) = self.connection(shared).await?;
            *locked(&used) = Some(number);
            Ok(connection.send_packed_commands(&calls, 0, count).await?)
        };
        let done = tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| Err(Error::no_reply()));
        let used = used.into_inner().unwrap_or_default();
        if used.is_some() && done.as_ref().is_err_and(Error::is_unanswered) {
            shared.close(used).await;
        }
        done
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

impl Io for Tokio {
    fn new(server: Arc<Server>, node: String) -> Tokio {
        Tokio { server, node, calls: Shared::default(), reader: Shared::default(), started: Mutex::default() }
    }

    async fn batch(&self, calls: Vec<Cmd>, limit: Duration) -> Result<Replies> {
        self.exchange(&self.calls, calls, limit).await.map(replies)
    }

    async fn read(&self, call: Cmd, limit: Duration) -> Result<Value> {
        first(self.exchange(&self.reader, vec![call], limit).await?)
    }

    async fn disconnect(&self) {
        self.calls.close(None).await;
        self.reader.close(None).await;
    }

    async fn timeout<F: Future + Send>(limit: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(limit, future).await.ok()
    }

    async fn ask(client: &Client, call: &Cmd) -> Result<Value> {
        let ask = async { Ok(connect(client).await?.send_packed_command(call).await?) };
        Tokio::timeout(CALL_TIMEOUT, ask).await.unwrap_or_else(|| Err(Error::no_reply()))
    }

    fn start(&self, reader: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let handle =
            Handle::try_current().map_err(|_| Error::new(ErrorKind::Misuse, "locks need a tokio runtime"))?;
        let task = handle.spawn(reader);
        *locked(&self.started) = Some((handle, task));
        Ok(())
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some((handle, _)) = &*locked(&self.started) {
            handle.spawn(work);
        }
    }

    async fn join(&self) {
        let task = locked(&self.started).take();
        if let Some((_, task)) = task {
            task.abort();
            drop(task.await);
        }
    }

    fn unit() -> String {
        tokio::task::try_id().map_or_else(Threads::unit, |id| format!("task-{id}"))
    }
}

/// The locks of threads. Each call has a connection of its own from a pool, as it blocks its thread.
pub struct Threads {
    server: Arc<Server>,
    node: String,
    idle: Mutex<Vec<Connection>>,
    reader: Mutex<Option<Connection>>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// The result of a future of [`Threads`], which blocks instead of suspending.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a blocking call suspended"),
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn dial(client: &Client) -> Result<Connection> {
    let connection = client.get_connection_with_timeout(CALL_TIMEOUT)?;
    connection.set_write_timeout(Some(CALL_TIMEOUT))?;
    Ok(connection)
}

fn exchange(
    connection: &mut Connection,
    calls: &[u8],
    count: usize,
    limit: Duration,
) -> redis::RedisResult<Vec<Value>> {
    connection.set_read_timeout(Some(limit))?;
    connection.req_packed_commands(calls, 0, count)
}

impl Threads {
    fn connect(&self) -> Result<Connection> {
        let client = run(self.server.client::<Threads>(&self.node));
        client.and_then(|client| dial(&client)).map_err(Error::unsent)
    }
}

impl Io for Threads {
    fn new(server: Arc<Server>, node: String) -> Threads {
        let (idle, reader, thread) = Default::default();
        Threads { server, node, idle, reader, thread }
    }

    async fn batch(&self, calls: Vec<Cmd>, limit: Duration) -> Result<Replies> {
        let (count, calls) = (calls.len(), pipeline(calls).get_packed_pipeline());
        loop {
            let idle = locked(&self.idle).pop();
            let is_new = idle.is_none();
            let mut connection = idle.map_or_else(|| self.connect(), Ok)?;
            match exchange(&mut connection, &calls, count, limit) {
                Ok(values) => {
                    locked(&self.idle).push(connection);
                    return Ok(replies(values));
                }
                // The server may have closed an idle connection. The calls have numbers, so they are sent again.
                Err(error) if !is_new && !error.is_timeout() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn read(&self, call: Cmd, limit: Duration) -> Result<Value> {
        let open = locked(&self.reader).take();
        let mut connection = open.map_or_else(|| self.connect(), Ok)?;
        let values = exchange(&mut connection, &call.get_packed_command(), 1, limit)?;
        *locked(&self.reader) = Some(connection);
        first(values)
    }

    async fn disconnect(&self) {
        locked(&self.idle).clear();
        *locked(&self.reader) = None;
    }

    async fn timeout<F: Future + Send>(limit: Duration, future: F) -> Option<F::Output> {
        let (until, mut future) = (after(limit), pin!(future));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Some(result);
            }
            let left = left(until);
            if left.is_zero() {
                return None;
            }
            thread::park_timeout(left);
        }
    }

    async fn ask(client: &Client, call: &Cmd) -> Result<Value> {
        first(exchange(&mut dial(client)?, &call.get_packed_command(), 1, CALL_TIMEOUT)?)
    }

    fn start(&self, reader: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name("redis-lock".to_owned()).spawn(|| run(reader));
        let thread =
            thread.map_err(|error| Error::new(ErrorKind::Unavailable, format!("no thread: {error}")))?;
        *locked(&self.thread) = Some(thread);
        Ok(())
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        run(work);
    }

    async fn join(&self) {
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            drop(thread.join());
        }
    }

    fn unit() -> String {
        static THREADS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        thread_local!(static NUMBER: u64 = THREADS.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        NUMBER.with(|number| format!("thread-{number}"))
    }
}
