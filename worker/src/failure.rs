//! Failures of a command: one line on stderr, with a hint if there is one, and an exit status.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use worker_cuda::{Error, ErrorKind};

pub type Outcome<T = ()> = Result<T, Failure>;

#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: Option<String>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usage,
    Failed,
    Interrupted,
    /// A status of the command's own.
    Status(u8),
    /// The reader of the output has closed it: print nothing.
    Quiet,
}

impl Failure {
    /// Wrong usage of the command: exit status 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            kind: Kind::Usage,
        }
    }

    /// The command failed: exit status 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: None,
            kind: Kind::Failed,
        }
    }

    /// The command failed in a way that has an exit status of its own.
    pub fn with_status(message: impl Into<String>, status: u8) -> Self {
        Self {
            kind: Kind::Status(status),
            ..Self::new(message)
        }
    }

    /// Ctrl-C: exit status 130.
    pub fn interrupted() -> Self {
        Self {
            message: "interrupted".into(),
            hint: None,
            kind: Kind::Interrupted,
        }
    }

    pub fn is_interrupted(&self) -> bool {
        self.kind == Kind::Interrupted
    }

    /// An error of the operating system with a file.
    pub fn file(path: &Path, error: &io::Error) -> Self {
        Self::new(format!("{}: {error}", path.display()))
    }

    /// Puts the file in front that it is about, unless the message names it; the name alone becomes the path.
    pub fn in_file(mut self, path: &Path) -> Self {
        let file = path.display().to_string();
        if self.kind == Kind::Failed && !self.message.contains(&file) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let message = self.message.strip_prefix(&*name);
            let message = message.and_then(|rest| rest.strip_prefix(": "));
            self.message = format!("{file}: {}", message.unwrap_or(&self.message));
        }
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub fn print(&self) {
        if self.kind != Kind::Quiet {
            notice(&format!("error: {self}"));
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        match self.kind {
            Kind::Usage => ExitCode::from(2),
            Kind::Failed => ExitCode::from(1),
            Kind::Interrupted => ExitCode::from(130),
            Kind::Status(status) => ExitCode::from(status),
            Kind::Quiet => ExitCode::SUCCESS,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&one_line(&self.message))?;
        if let Some(hint) = &self.hint {
            write!(f, " (hint: {hint})")?;
        }
        Ok(())
    }
}

/// Writes a line to stderr, whether or not there is still a reader; `eprintln!` panics without one.
pub fn notice(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Text without control characters: names from foreign files must not control the terminal.
pub fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.kind() == ErrorKind::Cancelled {
            return Self::interrupted();
        }
        let hint = match error.kind() {
            ErrorKind::NoDevice | ErrorKind::NotAvailable => Some("--backend host runs on the CPU"),
            ErrorKind::OutOfMemory | ErrorKind::OutOfHostMemory | ErrorKind::OverBudget => Some(
                "'worker-orcd plan' shows the memory needed; --context, --batch and --kv-type reduce it",
            ),
            ErrorKind::InvalidArgument if error.message().contains("token budget") => {
                Some("--batch sets the token budget, --max-sequences the number of sequences")
            }
            ErrorKind::LimitExceeded if error.message().contains("sequence") => {
                Some("--context sets the length of a sequence")
            }
            _ => None,
        };
        let failure = Self::new(error.to_string());
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// An error while writing to stdout; a closed reader ends the command silently.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::BrokenPipe => Kind::Quiet,
            _ => Kind::Failed,
        };
        Self {
            message: format!("writing the output: {error}"),
            hint: None,
            kind,
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Self::new(format!("JSON: {error}")),
        }
    }
}
