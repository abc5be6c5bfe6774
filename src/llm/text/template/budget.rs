//! The memory that one rendering may use, counted as it makes values.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// Begins the message of every error about a limit.
pub(super) const LIMIT_PREFIX: &str = "limit: ";

/// What an element of a list or map takes, about.
const ELEMENT_BYTES: u64 = 32;
/// How many values that hold lists or maps may be written out in the program's course: each may nest
/// one level deeper, and taking deep nesting apart recurses.
const NESTING_MAX: u64 = 20_000;

/// Bytes made so far, shared by everything that makes values.
#[derive(Clone)]
pub(super) struct Budget(Arc<Counters>);

struct Counters {
    limit: u64,
    bytes: AtomicU64,
    nestings: AtomicU64,
    /// Bytes looked at: they take time, not memory.
    work: AtomicU64,
}

/// Bytes that may be looked at for each that may be made.
const WORK_FACTOR: u64 = 16;

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Budget(Arc::new(Counters {
            limit,
            bytes: AtomicU64::new(0),
            nestings: AtomicU64::new(0),
            work: AtomicU64::new(0),
        }))
    }

    /// Counts bytes that are made, or are about to be.
    pub(super) fn charge(&self, bytes: u64) -> Result<(), Error> {
        let before = self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= self.0.limit {
            return Ok(());
        }
        self.0.bytes.store(self.0.limit, Ordering::Relaxed);
        Err(Error::new(
            ErrorKind::InvalidOperation,
            format!(
                "{LIMIT_PREFIX}its values take more than {} bytes",
                self.0.limit
            ),
        ))
    }

    /// Counts a value that was just made.
    pub(super) fn charge_value(&self, value: &Value) -> Result<(), Error> {
        self.charge(size_of_value(value))
    }

    /// Counts the work of going through a text once.
    pub(super) fn seen(&self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.work(text.len() as u64),
            None => Ok(()),
        }
    }

    /// Counts the work of comparing a value: all that it holds, as often as it holds it.
    pub(super) fn compared(&self, value: &Value) -> Result<(), Error> {
        self.work(size_of_value(value))?;
        match value.kind() {
            ValueKind::Map => {
                for key in value.try_iter()? {
                    self.compared(&value.get_item(&key)?)?;
                }
            }
            ValueKind::Seq => {
                for item in value.try_iter()? {
                    self.compared(&item)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn work(&self, bytes: u64) -> Result<(), Error> {
        let before = self.0.work.fetch_add(bytes, Ordering::Relaxed);
        let limit = self.0.limit.saturating_mul(WORK_FACTOR);
        if before.saturating_add(bytes) <= limit {
            return Ok(());
        }
        self.0.work.store(limit, Ordering::Relaxed);
        Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("{LIMIT_PREFIX}it goes through more than {limit} bytes"),
        ))
    }

    /// Counts a list or map that was just written out.
    pub(super) fn charge_container(&self, value: &Value) -> Result<(), Error> {
        self.charge_value(value)?;
        let holds_containers = match value.kind() {
            ValueKind::Map => value.try_iter()?.any(|key| {
                value
                    .get_item(&key)
                    .is_ok_and(|item| item.as_object().is_some())
            }),
            _ => value.try_iter()?.any(|item| item.as_object().is_some()),
        };
        if holds_containers && self.0.nestings.fetch_add(1, Ordering::Relaxed) >= NESTING_MAX {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{LIMIT_PREFIX}more than {NESTING_MAX} nested lists or maps"),
            ));
        }
        Ok(())
    }
}

/// Bytes that `value` itself takes, without what its elements take.
pub(super) fn size_of_value(value: &Value) -> u64 {
    if let Some(text) = value.as_str() {
        text.len() as u64
    } else if value.as_object().is_some() {
        ELEMENT_BYTES * (value.len().unwrap_or(0) as u64 + 1)
    } else {
        0
    }
}
