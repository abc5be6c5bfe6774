//! The budget of one rendering: steps, memory and time, charged before they are used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::generator::Generator;
use super::{RenderOptions, TemplateLimits};

/// Prefixes of the messages of errors that are not the template's fault; `explain` reads them.
pub(super) const LIMIT_PREFIX: &str = "limit: ";
pub(super) const CANCELLED: &str = "rendering was cancelled";
pub(super) const TIMED_OUT: &str = "rendering passed its deadline";

/// Allocated bytes an element of a list takes at most, growth of the list included.
const ELEMENT_BYTES: u64 = 96;
/// Allocated bytes an entry of a map takes at most, growth of the map included.
const ENTRY_BYTES: u64 = 256;
/// Allocated bytes of a list or map without elements.
const CONTAINER_BYTES: u64 = 128;
/// Copies of a text that exist while it is made: the buffer it grows in, and the value.
const TEXT_COPIES: u64 = 3;
/// Most lists and maps that hold lists or maps: each may nest one level deeper than the one before, and
/// dropping deep nesting recurses.
const NESTING_MAX: u64 = 20_000;
/// Bytes that may be read for each byte that may be allocated.
const READ_FACTOR: u64 = 16;

/// The counters of one rendering. Clones share them.
#[derive(Clone)]
pub(super) struct Budget(Arc<Counters>);

struct Counters {
    bytes_max: u64,
    bytes: AtomicU64,
    read_max: u64,
    read: AtomicU64,
    steps_max: u64,
    steps: AtomicU64,
    nestings: AtomicU64,
    options: RenderOptions,
}

impl Budget {
    pub(super) fn new(limits: TemplateLimits, options: &RenderOptions) -> Self {
        Budget(Arc::new(Counters {
            bytes_max: limits.working_bytes,
            bytes: AtomicU64::new(0),
            read_max: limits.working_bytes.saturating_mul(READ_FACTOR),
            read: AtomicU64::new(0),
            steps_max: limits.fuel,
            steps: AtomicU64::new(0),
            nestings: AtomicU64::new(0),
            options: options.clone(),
        }))
    }

    /// Fails when the caller cancelled the rendering or its deadline has passed.
    pub(super) fn check(&self) -> Result<(), Error> {
        let RenderOptions { deadline, cancel } = &self.0.options;
        if cancel.as_ref().is_some_and(|flag| flag.is_set()) {
            return Err(Error::new(ErrorKind::InvalidOperation, CANCELLED));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::new(ErrorKind::InvalidOperation, TIMED_OUT));
        }
        Ok(())
    }

    /// Counts bytes that are about to be allocated.
    pub(super) fn allocate(&self, bytes: u64) -> Result<(), Error> {
        self.check()?;
        let limit = self.0.bytes_max;
        add(&self.0.bytes, bytes, limit, || {
            format!("its values take more than {limit} bytes")
        })
    }

    /// Counts a text of `bytes` that is about to be made, with the copies that making it takes.
    pub(super) fn text(&self, bytes: usize) -> Result<(), Error> {
        self.allocate((bytes as u64).saturating_mul(TEXT_COPIES))
    }

    /// Counts a list of `count` elements that is about to be made.
    pub(super) fn list(&self, count: u64) -> Result<(), Error> {
        let bytes = count.saturating_mul(ELEMENT_BYTES);
        self.allocate(bytes.saturating_add(CONTAINER_BYTES))
    }

    /// Counts a value that the interpreter has just made.
    pub(super) fn made(&self, value: &Value) -> Result<(), Error> {
        self.allocate(size_of_value(value))
    }

    /// Counts elements that are visited one by one.
    pub(super) fn steps(&self, count: u64) -> Result<(), Error> {
        self.check()?;
        let limit = self.0.steps_max;
        add(&self.0.steps, count, limit, || {
            format!("it visits more than {limit} elements")
        })
    }

    /// Counts a visit to each element of `value`, and returns how many there are. Values that cannot be
    /// iterated over have none.
    pub(super) fn visit(&self, value: &Value) -> Result<u64, Error> {
        let known = match value.as_str() {
            _ if Generator::remaining(value).is_some() => Generator::remaining(value),
            Some(text) => Some(text.len()),
            None if value.as_object().is_none() => Some(0),
            None => value.len(),
        };
        if let Some(count) = known {
            self.steps(count as u64)?;
            return Ok(count as u64);
        }
        let mut count = 0;
        if let Ok(items) = value.try_iter() {
            for _ in items {
                self.steps(1)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Counts the work of finding one element of `value`: a list or map finds it at once, a text is read
    /// from its beginning, a lazy sequence is computed up to it.
    pub(super) fn look_up(&self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => self.read(value.as_str().map_or(0, str::len) as u64),
            ValueKind::Iterable => self.visit(value).map(drop),
            _ => Ok(()),
        }
    }

    /// Counts the work of comparing a value: all that it holds, as often as it holds it.
    pub(super) fn compared(&self, value: &Value) -> Result<(), Error> {
        self.read(size_of_value(value))?;
        match value.kind() {
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.steps(1)?;
                    self.compared(&key)?;
                    self.compared(&value.get_item(&key)?)?;
                }
            }
            // Comparing a generator does not run it.
            ValueKind::Iterable if Generator::remaining(value).is_some() => {}
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.steps(1)?;
                    self.compared(&item)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Counts bytes of text that are read.
    pub(super) fn read(&self, bytes: u64) -> Result<(), Error> {
        self.check()?;
        let limit = self.0.read_max;
        add(&self.0.read, bytes, limit, || {
            format!("it reads more than {limit} bytes")
        })
    }

    /// Counts a list or map that was just made out of other values.
    pub(super) fn container(&self, value: &Value) -> Result<(), Error> {
        self.made(value)?;
        let is_container = |item: Value| item.as_object().is_some();
        let holds_containers = match value.kind() {
            ValueKind::Map => value.try_iter()?.any(|key| {
                is_container(key.clone()) || value.get_item(&key).is_ok_and(is_container)
            }),
            ValueKind::Iterable if Generator::remaining(value).is_some() => true,
            _ => value.try_iter()?.any(is_container),
        };
        if !holds_containers {
            return Ok(());
        }
        add(&self.0.nestings, 1, NESTING_MAX, || {
            format!("more than {NESTING_MAX} nested lists or maps")
        })
    }
}

/// Adds to a counter; past its limit it stays there, so that what is tried next fails as well.
fn add(
    counter: &AtomicU64,
    amount: u64,
    limit: u64,
    message: impl FnOnce() -> String,
) -> Result<(), Error> {
    let sum = counter.load(Ordering::Relaxed).saturating_add(amount);
    counter.store(sum, Ordering::Relaxed);
    if sum <= limit {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{LIMIT_PREFIX}{}", message()),
    ))
}

/// Allocated bytes of `value` itself, without those of its elements.
pub(super) fn size_of_value(value: &Value) -> u64 {
    if let Some(text) = value.as_str() {
        return TEXT_COPIES * text.len() as u64;
    }
    if value.as_object().is_none() {
        return 0;
    }
    let element = match value.kind() {
        ValueKind::Map => ENTRY_BYTES,
        _ => ELEMENT_BYTES,
    };
    element * value.len().unwrap_or(0) as u64 + CONTAINER_BYTES
}
