//! A connection: fails if its client takes no byte for too long, and shows when the client has left.

use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};

/// How often a connection with unread bytes is asked whether its client has left.
const LOOK_PERIOD: Duration = Duration::from_millis(250);

/// A connected socket of either kind.
pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    fn system(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Unix(stream) => SockRef::from(stream),
        }
    }

    fn poll_ready(&self, interest: Interest, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match (self, interest.is_readable()) {
            (Self::Tcp(stream), true) => stream.poll_read_ready(context),
            (Self::Tcp(stream), false) => stream.poll_write_ready(context),
            (Self::Unix(stream), true) => stream.poll_read_ready(context),
            (Self::Unix(stream), false) => stream.poll_write_ready(context),
        }
    }

    /// Does `work` as soon as the socket is ready for it.
    fn poll_io<T>(
        &self,
        interest: Interest,
        context: &mut Context<'_>,
        mut work: impl FnMut(SockRef<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            ready!(self.poll_ready(interest, context))?;
            let done = match self {
                Self::Tcp(stream) => stream.try_io(interest, || work(self.system())),
                Self::Unix(stream) => stream.try_io(interest, || work(self.system())),
            };
            match done {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Ready when the client has left. The HTTP library does not look for that after requests with
    /// `Connection: close`, and not behind bytes that it does not want yet; behind these nothing wakes the task,
    /// which looks again when `look` is over.
    pub fn poll_left(
        &self,
        context: &mut Context<'_>,
        look: &mut Option<Pin<Box<Sleep>>>,
    ) -> Poll<()> {
        let peek = |socket: SockRef<'_>| socket.peek(&mut [MaybeUninit::uninit()]);
        match self.poll_io(Interest::READABLE, context, peek) {
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(_)) => {}
            Poll::Pending => return Poll::Pending,
        }
        while !self.is_closed_by_peer() {
            let timer = look.get_or_insert_with(|| Box::pin(sleep(LOOK_PERIOD)));
            ready!(timer.as_mut().poll(context));
            *look = None;
        }
        Poll::Ready(())
    }

    fn is_closed_by_peer(&self) -> bool {
        let descriptor = match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        };
        let mut poll = [PollFd::new(
            descriptor,
            PollFlags::from_bits_retain(nix::libc::POLLRDHUP),
        )];
        nix::poll::poll(&mut poll, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

/// A socket with a limit on how long a write may wait.
pub struct Connection {
    socket: Arc<Socket>,
    limit: Duration,
    /// While a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    pub fn new(socket: Arc<Socket>, limit: Duration) -> Self {
        Self {
            socket,
            limit,
            stalled: None,
        }
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        send: impl FnMut(SockRef<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let sent = self.socket.poll_io(Interest::WRITABLE, context, send);
        if sent.is_ready() {
            self.stalled = None;
            return sent;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // The buffer is zeroed when there is something to read, not whenever the task looks.
        let read =
            |socket: SockRef<'_>| io::Read::read(&mut &*socket, buffer.initialize_unfilled());
        let count = ready!(self.socket.poll_io(Interest::READABLE, context, read))?;
        buffer.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |socket| socket.send(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, |socket| socket.send_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.system().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_client_that_takes_no_byte_is_left_and_one_that_leaves_is_seen() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (client, server) = UnixStream::pair().expect("two sockets");
            let socket = Arc::new(Socket::Unix(server));
            let mut connection = Connection::new(Arc::clone(&socket), Duration::from_millis(1));
            let bytes = [0; 1 << 16];
            let error = loop {
                let write = |context: &mut Context<'_>| {
                    Pin::new(&mut connection).poll_write(context, &bytes)
                };
                if let Err(error) = poll_fn(write).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(client);
            poll_fn(|context| socket.poll_left(context, &mut None)).await;
        });
    }
}
