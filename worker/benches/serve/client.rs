//! A worker as a process of its own, and requests whose events are only stamped while they come and read afterwards,
//! so that the client takes little of the processor.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use worker_cuda::Token;

pub type Outcome<T> = Result<T, String>;

/// One streamed answer.
pub struct Stream {
    pub begin: Instant,
    /// When tokens came, and how many.
    pub arrivals: Vec<(Instant, u32)>,
}

impl Stream {
    pub fn first(&self) -> Instant {
        self.arrivals[0].0
    }

    pub fn last(&self) -> Instant {
        self.arrivals[self.arrivals.len() - 1].0
    }
}

/// `worker-orcd serve`; dropped, it is ended.
pub struct Server {
    process: Child,
    client: Client,
}

/// A server's first model.
pub struct Client {
    address: String,
    model: String,
}

impl Server {
    pub fn start(worker: &str, model: &str, options: &[&str]) -> Outcome<Self> {
        let mut command = Command::new(worker);
        command.args(["serve", model, "--port", "0", "--log", "off"]);
        command.args(options).stdout(Stdio::piped());
        let process = command
            .spawn()
            .map_err(|error| format!("{worker}: {error}"))?;
        let client = Client {
            address: String::new(),
            model: String::new(),
        };
        // From here on it ends with this.
        let mut server = Self { process, client };
        let mut line = String::new();
        let output = server.process.stdout.take().ok_or("no output")?;
        let read = BufReader::new(output).read_line(&mut line);
        read.map_err(|error| format!("the server: {error}"))?;
        let address = line.trim().strip_prefix("listening on http://");
        server.client = Client::of(address.ok_or("the server did not start")?)?;
        Ok(server)
    }

    pub fn process_id(&self) -> u32 {
        self.process.id()
    }
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Client {
    pub fn of(address: &str) -> Outcome<Self> {
        let mut client = Self {
            address: address.to_owned(),
            model: String::new(),
        };
        let models: Value = serde_json::from_str(&client.get("/v1/models")?)
            .map_err(|error| format!("/v1/models: {error}"))?;
        let id = models["data"][0]["id"].as_str();
        client.model = id.ok_or("the server has no model")?.to_owned();
        Ok(client)
    }

    fn send(&self, head: &str, body: &str) -> Outcome<BufReader<TcpStream>> {
        let text = format!(
            "{head} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let failed = |error| format!("{head}: {error}");
        let mut stream = TcpStream::connect(&self.address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.write_all(text.as_bytes()).map_err(failed)?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).map_err(failed)?;
        if line.starts_with("HTTP/1.1 200 ") {
            return Ok(reader);
        }
        reader.read_to_string(&mut line).map_err(failed)?;
        Err(format!("{head}: {line}"))
    }

    /// The body of an answer that is not chunked.
    pub fn get(&self, path: &str) -> Outcome<String> {
        let mut text = String::new();
        let mut reader = self.send(&format!("GET {path}"), "")?;
        let read = reader.read_to_string(&mut text);
        read.map_err(|error| format!("{path}: {error}"))?;
        let body = text
            .split_once("\r\n\r\n")
            .ok_or_else(|| format!("{path}: no body"))?;
        Ok(body.1.to_owned())
    }

    /// A streamed completion of exactly so many tokens; calls `started` at the first of them.
    pub fn complete(
        &self,
        prompt: &[Token],
        tokens: u32,
        started: impl FnOnce(),
    ) -> Outcome<Stream> {
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": true,
            "return_token_ids": true,
            "stream": true,
        });
        let body = body.to_string();
        let begin = Instant::now();
        let mut reader = self.send("POST /v1/completions", &body)?;
        let (mut started, mut lines) = (Some(started), Vec::with_capacity(tokens as usize + 4));
        loop {
            // A chunk of the transfer has whole lines: those that are no data are its lengths.
            let mut line = Vec::new();
            let read = reader.read_until(b'\n', &mut line);
            if read.map_err(|error| format!("the stream: {error}"))? == 0 {
                break;
            }
            if line.starts_with(b"data: ") {
                lines.push((Instant::now(), line));
                // The first chunk has the tokens of the prompt, the second the first of the answer.
                if lines.len() == 2
                    && let Some(started) = started.take()
                {
                    started();
                }
            }
        }
        let last = lines.pop().map_or(Vec::new(), |(_, line)| line);
        if last != b"data: [DONE]\n" {
            let last = String::from_utf8_lossy(&last);
            return Err(format!("the stream ends with '{}'", last.trim()));
        }
        let mut arrivals = Vec::with_capacity(lines.len());
        for (time, line) in lines {
            let chunk: Value =
                serde_json::from_slice(&line[6..]).map_err(|error| format!("a chunk: {error}"))?;
            let ids = chunk["choices"][0]["token_ids"].as_array();
            match ids.map_or(0, Vec::len) {
                0 => {}
                count => arrivals.push((time, count as u32)),
            }
        }
        match arrivals.iter().map(|(_, count)| count).sum::<u32>() {
            count if count == tokens => Ok(Stream { begin, arrivals }),
            count => Err(format!("{count} tokens of {tokens}")),
        }
    }
}
