//! A small HTTP/1.1 client: one request a connection, answers read as they come.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

/// An address of the form `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host and port.
    authority: String,
    /// Begins with a slash, or is empty.
    path: String,
}

impl Url {
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text
            .strip_prefix("http://")
            .ok_or_else(|| format!("'{text}' does not begin with http://"))?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !is_plain(rest) {
            return Err(format!("'{text}' has no valid host"));
        }
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if has_port { "" } else { ":80" };
        Ok(Self {
            authority: format!("{authority}{port}"),
            path: path.trim_end_matches('/').to_owned(),
        })
    }

    /// The address of a path below this one.
    pub fn join(&self, path: &str) -> Self {
        Self {
            authority: self.authority.clone(),
            path: format!("{}{path}", self.path),
        }
    }

    /// The address of this machine from which the host is reached. Sends nothing.
    pub fn route(&self) -> io::Result<IpAddr> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in self.authority.to_socket_addrs()? {
            let any: IpAddr = match address {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let connected = UdpSocket::bind((any, 0)).and_then(|socket| {
                socket.connect(address)?;
                socket.local_addr()
            });
            match connected {
                Ok(address) => return Ok(address.ip()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn connect(&self, timeout: Duration) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// An answer, whose body is read from it.
pub struct Reply {
    pub status: u16,
    input: BufReader<TcpStream>,
    left: Left,
}

/// What is left of a body.
enum Left {
    /// So many bytes; u64::MAX: until the connection ends.
    Bytes(u64),
    /// So many of this chunk, and more chunks.
    Chunk(u64),
}

/// Sends a request. `timeout` is for the connection, and for each wait for bytes. `key` is an API key.
pub fn send(
    method: &str,
    url: &Url,
    key: Option<&str>,
    body: &str,
    timeout: Duration,
) -> io::Result<Reply> {
    let mut stream = url.connect(timeout)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let path = if url.path.is_empty() { "/" } else { &url.path };
    let key = key.map_or(String::new(), |key| {
        format!("authorization: Bearer {key}\r\n")
    });
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{key}\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        url.authority,
        body.len()
    );
    stream.write_all((head + body).as_bytes())?;
    Reply::read(BufReader::new(stream))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the answer has {what}"))
}

/// Longest line of a head or of a chunk's length.
const MAX_LINE_BYTES: u64 = 16 << 10;

fn line(input: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    input.take(MAX_LINE_BYTES).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.trim_end_matches('\r').to_owned()),
        None => Err(malformed("a line without an end")),
    }
}

impl Reply {
    fn read(mut input: BufReader<TcpStream>) -> io::Result<Self> {
        let first = line(&mut input)?;
        let status = first
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.get(2..5)?.parse().ok())
            .ok_or_else(|| malformed("no status"))?;
        let mut left = Left::Bytes(u64::MAX);
        loop {
            let header = line(&mut input)?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').unwrap_or((&header, ""));
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                let bytes = value.parse().map_err(|_| malformed("a wrong length"))?;
                left = Left::Bytes(bytes);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                left = Left::Chunk(0);
            }
        }
        Ok(Self {
            status,
            input,
            left,
        })
    }

    /// All that is left.
    pub fn text(&mut self) -> io::Result<String> {
        let mut text = String::new();
        self.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Reads the length of the next chunk, behind the end of the last one.
    fn next_chunk(&mut self) -> io::Result<u64> {
        let mut length = line(&mut self.input)?;
        if length.is_empty() {
            length = line(&mut self.input)?;
        }
        let digits = length.split(';').next().unwrap_or_default().trim();
        u64::from_str_radix(digits, 16).map_err(|_| malformed("a chunk without a length"))
    }
}

impl Read for Reply {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunk(0) = self.left {
            self.left = match self.next_chunk()? {
                0 => Left::Bytes(0),
                bytes => Left::Chunk(bytes),
            };
        }
        let (Left::Bytes(left) | Left::Chunk(left)) = &mut self.left;
        let most = usize::try_from(*left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let count = self.input.read(&mut buffer[..most])?;
        if count == 0 && most > 0 && *left != u64::MAX {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if *left != u64::MAX {
            *left -= count as u64;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn answer(text: &'static str) -> io::Result<(u16, String)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = Url::parse(&format!("http://{}", listener.local_addr()?)).expect("a URL");
        let server = std::thread::spawn(move || -> io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut input = BufReader::new(stream.try_clone()?);
            while !line(&mut input)?.is_empty() {}
            stream.write_all(text.as_bytes())
        });
        let reply = send("GET", &url, None, "", Duration::from_secs(60));
        let read = reply.and_then(|mut reply| Ok((reply.status, reply.text()?)));
        server.join().expect("no panic")?;
        read
    }

    #[test]
    fn bodies_of_each_kind_are_read() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.0 200 OK\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        ] {
            assert_eq!(answer(text).expect(text), (200, "hello".to_owned()));
        }
    }

    #[test]
    fn answers_that_are_cut_off_are_errors() {
        for text in [
            "",
            "HTTP/1.1",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhell",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nz\r\n",
        ] {
            answer(text).expect_err(text);
        }
    }

    #[test]
    fn urls_have_a_host_and_a_port() {
        let url = Url::parse("http://a.b/x/").expect("a URL");
        assert_eq!((&*url.authority, &*url.path), ("a.b:80", "/x"));
        assert_eq!(url.join("/y").path, "/x/y");
        assert_eq!(
            Url::parse("http://[::1]:80").expect("a URL").authority,
            "[::1]:80"
        );
        for text in [
            "https://a",
            "a:80",
            "http://",
            "http:///x",
            "http://u@a",
            "http://a b",
            "http://a/\r\nx",
        ] {
            Url::parse(text).expect_err(text);
        }
    }
}
