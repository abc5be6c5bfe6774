//! A connection: fails if its client takes no byte for too long, and shows when the client has left.

use std::future::Future;
use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nix::libc::{TIOCOUTQ, c_int, ioctl};
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

    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }

    /// Bytes that were sent and that the client has not taken.
    fn waiting_bytes(&self) -> c_int {
        let mut bytes: c_int = 0;
        // SAFETY: the call writes one int, and the descriptor is open. After a failure it is still 0.
        unsafe { ioctl(self.descriptor().as_raw_fd(), TIOCOUTQ, &mut bytes) };
        bytes
    }

    fn is_closed_by_peer(&self) -> bool {
        let descriptor = self.descriptor();
        let mut poll = [PollFd::new(
            descriptor,
            PollFlags::from_bits_retain(nix::libc::POLLRDHUP),
        )];
        nix::poll::poll(&mut poll, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

/// A socket with a limit on how long its client may take no byte while a write waits.
pub struct Connection {
    socket: Arc<Socket>,
    limit: Duration,
    /// While a write waits.
    stalled: Option<Stall>,
}

struct Stall {
    timer: Pin<Box<Sleep>>,
    /// [`Socket::waiting_bytes`] when the timer began. The system reports that a socket takes bytes again only when
    /// much of its buffer is free, for which a slow client may need longer than the limit.
    waiting_bytes: c_int,
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
        loop {
            let stall = self.stalled.get_or_insert_with(|| Stall {
                timer: Box::pin(sleep(self.limit)),
                waiting_bytes: self.socket.waiting_bytes(),
            });
            ready!(stall.timer.as_mut().poll(context));
            if self.socket.waiting_bytes() >= stall.waiting_bytes {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.stalled = None;
        }
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

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().expect("a runtime")
    }

    impl Connection {
        fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
            Pin::new(self).poll_write(context, &[0; 1 << 16])
        }
    }

    #[test]
    fn a_client_that_takes_bytes_slowly_is_not_left() {
        runtime().block_on(async {
            let (_client, server) = UnixStream::pair().expect("two sockets");
            let socket = Arc::new(Socket::Unix(server));
            let mut connection = Connection::new(Arc::clone(&socket), Duration::from_secs(3600));
            let fill = |context: &mut Context<'_>| {
                while connection.poll_fill(context).is_ready() {}
                Poll::Ready(())
            };
            poll_fn(fill).await;
            let waiting_bytes = socket.waiting_bytes();
            assert!(waiting_bytes > 0);

            // It has taken one byte by the end of the limit.
            connection.stalled = Some(Stall {
                timer: Box::pin(sleep(Duration::ZERO)),
                waiting_bytes: waiting_bytes + 1,
            });
            let begins_again = |context: &mut Context<'_>| {
                let sent = connection.poll_fill(context);
                assert!(sent.is_pending(), "{sent:?}");
                let stall = connection.stalled.as_ref().expect("a write waits");
                match stall.waiting_bytes == waiting_bytes {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            };
            poll_fn(begins_again).await;
        });
    }

    #[test]
    fn a_client_that_takes_no_byte_is_left_and_one_that_leaves_is_seen() {
        runtime().block_on(async {
            let (client, server) = UnixStream::pair().expect("two sockets");
            let socket = Arc::new(Socket::Unix(server));
            let mut connection = Connection::new(Arc::clone(&socket), Duration::from_millis(1));
            let error = loop {
                if let Err(error) = poll_fn(|context| connection.poll_fill(context)).await {
                    break error;
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(client);
            poll_fn(|context| socket.poll_left(context, &mut None)).await;
        });
    }
}
