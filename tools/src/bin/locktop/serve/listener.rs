// SPDX-License-Identifier: MIT

//! Connections of viewers, limited in number and time.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, Sleep};

/// Accepts a limited number of connections at a time. Closes further ones at once.
pub(super) struct LimitedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    lifetime: Duration,
}

impl LimitedListener {
    /// Accepts at most `most` connections, and closes each of them after `lifetime`.
    pub(super) fn new(listener: TcpListener, most: usize, lifetime: Duration) -> LimitedListener {
        LimitedListener { listener, places: Arc::new(Semaphore::new(most)), lifetime }
    }
}

impl Listener for LimitedListener {
    type Io = LimitedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (LimitedStream, SocketAddr) {
        loop {
            let (stream, peer) = Listener::accept(&mut self.listener).await;
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return (LimitedStream { stream, end: Box::pin(sleep(self.lifetime)), _place: place }, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The address of a viewer, or of the proxy before it.
#[derive(Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, LimitedListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, LimitedListener>) -> Peer {
        Peer(*stream.remote_addr())
    }
}

/// A connection that fails at the end of its lifetime, even if the peer sends or reads slowly.
pub(super) struct LimitedStream {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl LimitedStream {
    /// The stream, or an error after the end of the lifetime.
    fn poll_alive(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(Pin::new(&mut self.stream)),
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_alive(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_alive(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_alive(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_alive(context)?.poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_alive(context)?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn connections_are_limited_in_number_and_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut listener = LimitedListener::new(listener, 1, Duration::from_millis(100));
            let mut first = TcpStream::connect(address).await.unwrap();
            let (mut served, _) = listener.accept().await;
            let mut refused = TcpStream::connect(address).await.unwrap();
            let mut next = TcpStream::connect(address).await.unwrap();
            let accepting = tokio::spawn(async move { listener.accept().await });
            assert_eq!(refused.read(&mut [0]).await.unwrap(), 0, "there is no place");
            assert_eq!(next.read(&mut [0]).await.unwrap(), 0, "there is no place");
            first.write_all(b"a").await.unwrap();
            assert_eq!(served.read_u8().await.unwrap(), b'a');
            let read = timeout(Duration::from_secs(30), served.read_u8()).await;
            assert_eq!(read.expect("the lifetime ends").unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(served.write(b"a").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(served);
            let _last = TcpStream::connect(address).await.unwrap();
            accepting.await.unwrap();
        });
    }
}
