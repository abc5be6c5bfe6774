//! API keys: read from a file, kept as digests.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use blake3::Hash;
use subtle::ConstantTimeEq;
use worker_cuda::scheduler::MAX_PRIORITY;

use super::error::ApiError;
use crate::failure::{Failure, Outcome};

/// Who may use a server. Empty: everybody.
#[derive(Debug, Default)]
pub struct Keys(Vec<Key>);

#[derive(Debug)]
struct Key {
    digest: Hash,
    caller: Caller,
}

/// What a key may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Everything but to end or change the server.
    User,
    /// Only `/health` and `/metrics`.
    #[default]
    Monitor,
}

/// Who sends a request, and what it may do.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// Its number for the scheduler.
    pub tenant: u32,
    /// Its name: requests of one name share cached prompts.
    pub name: Arc<str>,
    pub role: Role,
    /// No request of it is more urgent than this.
    pub priority: u8,
    /// Most requests at once; 0: no limit.
    concurrency: u32,
    active: Arc<AtomicU32>,
}

/// One of the requests that a caller has at once. Dropping it ends it.
#[derive(Debug)]
pub struct Permit(Arc<AtomicU32>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Keys {
    /// Reads a file with one key a line: `KEY [role=R] [tenant=NAME] [priority=N] [concurrency=N]`. A word that begins
    /// with # begins a comment.
    pub fn read(path: &Path) -> Outcome<Self> {
        let text = fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
        Self::of_lines(&text)
            .map_err(|message| Failure::new(format!("{}: {message}", path.display())))
    }

    /// [`parse`](Self::parse), with at least one key.
    pub(super) fn of_lines(text: &str) -> Result<Self, String> {
        let keys = Self::parse(text)?;
        match keys.is_empty() {
            true => Err("has no key".into()),
            false => Ok(keys),
        }
    }

    /// Parses the contents of a key file. Errors name the line, never a key.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Self::default();
        let mut tenants: Vec<Arc<str>> = Vec::new();
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let words = line.split_whitespace();
            let mut words = words.take_while(|word| !word.starts_with('#'));
            let Some(key) = words.next() else {
                continue;
            };
            if key.len() < MIN_KEY_BYTES {
                return Err(format!(
                    "line {number}: a key of {} bytes, at least {MIN_KEY_BYTES} are required",
                    key.len()
                ));
            }
            let digest = blake3::hash(key.as_bytes());
            if keys.0.iter().any(|other| other.digest == digest) {
                return Err(format!("line {number}: the key is there twice"));
            }
            let mut caller = Caller {
                name: format!("key{number}").into(),
                role: Role::User,
                ..Caller::default()
            };
            for word in words {
                caller
                    .set(word)
                    .map_err(|message| format!("line {number}: {message}"))?;
            }
            let known = tenants.iter().position(|name| *name == caller.name);
            caller.tenant = known.unwrap_or(tenants.len()) as u32;
            if known.is_none() {
                tenants.push(Arc::clone(&caller.name));
            }
            if tenants.len() > MAX_TENANTS {
                return Err(format!("line {number}: more than {MAX_TENANTS} tenants"));
            }
            keys.0.push(Key { digest, caller });
        }
        Ok(keys)
    }

    /// Tenants that have keys.
    pub(super) fn tenant_count(&self) -> u32 {
        let tenants = self.0.iter().map(|key| key.caller.tenant + 1);
        tenants.max().unwrap_or(0)
    }

    /// Whether no key is required.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The caller of a request, by `Authorization: Bearer` or `x-api-key`. Where no key is required, everybody has
    /// the role `open`.
    pub(super) fn check(&self, headers: &HeaderMap, open: Role) -> Result<Caller, ApiError> {
        if self.is_empty() {
            return Ok(Caller {
                role: open,
                ..Caller::default()
            });
        }
        let refused =
            |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message);
        let bearer = headers.get(AUTHORIZATION).map(|value| {
            let value = value.as_bytes();
            let is_bearer = value.len() > 7 && value[..7].eq_ignore_ascii_case(b"bearer ");
            if is_bearer {
                value[7..].trim_ascii()
            } else {
                b""
            }
        });
        let key = bearer
            .or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
            .ok_or_else(|| {
                refused("an API key is required: Authorization: Bearer KEY, or x-api-key: KEY")
            })?;
        // Digests are compared in constant time, and all of them.
        let digest = blake3::hash(key);
        let mut found = None;
        for key in &self.0 {
            if key.digest.as_bytes().ct_eq(digest.as_bytes()).into() {
                found = Some(&key.caller);
            }
        }
        found
            .cloned()
            .ok_or_else(|| refused("the API key is not valid"))
    }
}

/// Whether a path ends or changes the server.
fn is_admins(path: &str) -> bool {
    let changes_model = path.ends_with("/load") || path.ends_with("/unload");
    path == "/shutdown" || path.starts_with("/v1/models/") && changes_model
}

/// As many as a service has by default.
const MAX_TENANTS: usize = 256;

/// What some editors put in front of a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Shorter keys can be guessed.
const MIN_KEY_BYTES: usize = 16;

impl Caller {
    /// An error says what is accepted, and not the word: it may be another key.
    fn set(&mut self, property: &str) -> Result<(), String> {
        let (name, value) = property.split_once('=').unwrap_or_default();
        let accepted = |what: &str| format!("{name} must be {what}");
        match name {
            "role" => {
                self.role = match value {
                    "admin" => Role::Admin,
                    "user" => Role::User,
                    "monitor" => Role::Monitor,
                    _ => return Err(accepted("admin, user or monitor")),
                }
            }
            "tenant" if value.is_empty() => return Err(accepted("a name")),
            "tenant" => self.name = value.into(),
            "priority" => {
                let level = value.parse().ok().filter(|level| *level <= MAX_PRIORITY);
                self.priority =
                    level.ok_or_else(|| accepted(&format!("from 0 to {MAX_PRIORITY}")))?;
            }
            "concurrency" => {
                let count = value.parse().ok().filter(|count| *count > 0);
                self.concurrency = count.ok_or_else(|| accepted("at least 1"))?;
            }
            _ => {
                let known = "role=, tenant=, priority= or concurrency=";
                return Err(format!("a word after the key does not begin with {known}"));
            }
        }
        Ok(())
    }

    /// Whether the role of the key has this path.
    pub fn check_path(&self, path: &str) -> Result<(), ApiError> {
        let is_report = path == "/health" || path == "/metrics";
        let allowed = match self.role {
            Role::Admin => true,
            Role::User => !is_admins(path),
            Role::Monitor => is_report,
        };
        if allowed {
            return Ok(());
        }
        let message = match &*self.name {
            "" => "this path requires an API key, a Unix socket, or the option --worker-id",
            _ => "the role of this API key does not have this path",
        };
        Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "role_not_allowed",
            message,
        ))
    }

    /// Counts one more request of this caller.
    pub fn enter(&self) -> Result<Arc<Permit>, ApiError> {
        let permit = Arc::new(Permit(Arc::clone(&self.active)));
        let before = self.active.fetch_add(1, Ordering::Relaxed);
        if self.concurrency != 0 && before >= self.concurrency {
            let limit = self.concurrency;
            let message = format!("this API key may have {limit} requests at once");
            return Err(ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "concurrency_limit_exceeded",
                message,
            )
            .with_retry_after(Duration::from_secs(1)));
        }
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(
            name.parse().expect("a name"),
            HeaderValue::from_static(value),
        )])
    }

    #[test]
    fn keys_are_found_by_both_headers_and_carry_their_properties() {
        let text = "# two keys\nsecret-of-alice-1 tenant=a priority=3\n\nsecret-of-bob-123 tenant=b concurrency=1\nsecret-of-carol-1 role=monitor\nsecret-of-dan-123 role=admin\n";
        let keys = Keys::parse(text).expect("keys");
        let check = |headers: &HeaderMap| keys.check(headers, Role::Admin);
        let alice = check(&headers("authorization", "bearer secret-of-alice-1"));
        let bob = check(&headers("x-api-key", "secret-of-bob-123")).expect("a key");
        let alice = alice.expect("a key");
        assert_eq!((alice.tenant, &*alice.name, alice.priority), (0, "a", 3));
        assert_eq!((bob.tenant, &*bob.name, bob.priority), (1, "b", 0));
        let role = |key| check(&headers("x-api-key", key)).expect("a key");
        for (key, path, allowed) in [
            ("secret-of-bob-123", "/v1/models", true),
            ("secret-of-bob-123", "/shutdown", false),
            ("secret-of-bob-123", "/v1/models/a/load", false),
            ("secret-of-bob-123", "/v1/models/a/unload", false),
            ("secret-of-carol-1", "/metrics", true),
            ("secret-of-carol-1", "/v1/models", false),
            ("secret-of-dan-123", "/shutdown", true),
        ] {
            let checked = role(key).check_path(path);
            assert_eq!(checked.is_ok(), allowed, "{key} {path}");
            if let Err(error) = checked {
                assert_eq!(error.status, StatusCode::FORBIDDEN);
            }
        }
        let first = bob.enter().expect("one");
        let refused = bob.enter().expect_err("a second one");
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        drop(first);
        bob.enter().expect("one again");
        for wrong in [
            HeaderMap::new(),
            headers("authorization", "Basic secret-of-alice-1"),
            headers("authorization", "Bearer"),
            headers("x-api-key", "secret-of-alice-"),
            headers("x-api-key", ""),
        ] {
            let error = check(&wrong).expect_err("no key");
            assert_eq!(error.status, StatusCode::UNAUTHORIZED);
        }
    }

    #[test]
    fn who_has_no_key_is_no_admin() {
        let probe = Caller::default();
        probe.check_path("/shutdown").expect_err("a probe");
        let anybody = Keys::default().check(&HeaderMap::new(), Role::User);
        let anybody = anybody.expect("no key is required");
        anybody.check_path("/shutdown").expect_err("no admin");
        anybody.check_path("/v1/models").expect("a user");
    }

    #[test]
    fn comments_and_a_byte_order_mark_are_no_part_of_a_key() {
        let text = "\u{feff}secret-of-alice-1 role=admin # of the manager\r\n  # none\r\n#\r\n";
        let keys = Keys::parse(text).expect("keys");
        let alice = keys.check(&headers("x-api-key", "secret-of-alice-1"), Role::User);
        assert_eq!(alice.expect("a key").role, Role::Admin);
        assert_eq!(keys.tenant_count(), 1);
    }

    #[test]
    fn key_files_are_refused_with_the_line_and_without_the_key() {
        for (text, part) in [
            ("short", "line 1: a key of 5 bytes, at least 16"),
            (
                "\n0123456789abcdef role=x",
                "line 2: role must be admin, user or monitor",
            ),
            ("0123456789abcdef tenant=", "tenant must be a name"),
            (
                "0123456789abcdef priority=16",
                "priority must be from 0 to 15",
            ),
            (
                "0123456789abcdef concurrency=0",
                "concurrency must be at least 1",
            ),
            (
                "fedcba9876543210 0123456789abcdef",
                "line 1: a word after the key",
            ),
            (
                "fedcba9876543210 0123456789abcdef=",
                "line 1: a word after the key",
            ),
            (
                "0123456789abcdef\n0123456789abcdef",
                "line 2: the key is there twice",
            ),
        ] {
            let message = Keys::parse(text).expect_err(text);
            assert!(message.contains(part), "{message}");
            assert!(!message.contains("0123456789abcdef"), "{message}");
        }
    }
}
