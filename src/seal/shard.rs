//! Identification of sealed memory, and its serialization.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::error::{VramError, VramResult};

/// First bytes of the encoding; the last of them is the version.
const MAGIC: &[u8; 8] = b"WCSEAL\0\x01";
const ID_CHARS_MAX: usize = 256;
const DIGEST_CHARS: usize = 64;
/// Maximum length of an encoded text.
const TEXT_BYTES_MAX: usize = 4096;

/// Identifies a region of sealed memory: contents, place, size, and a signature of them. Cloning it copies only
/// this description; the memory belongs to the [`VramManager`](super::VramManager) that sealed it.
///
/// ```
/// use worker_cuda::CudaContext;
/// use worker_cuda::seal::{SealedShard, VramConfig, VramManager};
/// # fn main() -> Result<(), worker_cuda::seal::VramError> {
/// let config = VramConfig::new(b"a token of at least thirty-two bytes");
/// let mut manager = VramManager::with_context(CudaContext::host()?, config)?;
/// let shard = manager.seal_model(b"weights", 0)?;
/// let written = shard.to_bytes()?;
/// manager.verify_sealed(&SealedShard::from_bytes(&written)?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SealedShard {
    /// "shard-" and 32 hex digits from the operating system's random numbers.
    pub shard_id: String,
    /// The device that holds it.
    pub gpu_device: u32,
    /// The size.
    pub vram_bytes: u64,
    /// BLAKE3 digest of the bytes, 64 hex digits; "" if it is not sealed.
    pub digest: String,
    /// When it was sealed.
    pub sealed_at: SystemTime,
    /// Name of the model, if one was given.
    pub model_ref: Option<String>,
    /// Index of the part of the model.
    pub shard_index: Option<u32>,
    /// Number of parts.
    pub total_shards: Option<u32>,
    pub(super) signature: Option<[u8; 32]>,
}

impl SealedShard {
    /// Whether it has a digest. [`VramManager::verify_sealed`](super::VramManager::verify_sealed) compares the memory
    /// with it.
    pub fn is_sealed(&self) -> bool {
        !self.digest.is_empty()
    }

    /// Serializes the shard and its signature: docs/FORMATS.md, "Sealed shards".
    pub fn to_bytes(&self) -> VramResult<Vec<u8>> {
        let mut bytes = self.signed_bytes()?;
        match &self.signature {
            None => bytes.push(0),
            Some(signature) => {
                bytes.push(1);
                bytes.extend_from_slice(signature);
            }
        }
        Ok(bytes)
    }

    /// Parses the output of [`to_bytes`](Self::to_bytes); anything else is refused. A parsed shard is only a claim,
    /// which a manager can verify.
    pub fn from_bytes(bytes: &[u8]) -> VramResult<Self> {
        let mut reader = Reader(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(malformed("not a sealed shard of version 1"));
        }
        let shard = Self {
            shard_id: reader.text()?,
            gpu_device: reader.u32()?,
            vram_bytes: reader.u64()?,
            digest: reader.text()?,
            sealed_at: reader.time()?,
            model_ref: reader.option(Reader::text)?,
            shard_index: reader.option(Reader::u32)?,
            total_shards: reader.option(Reader::u32)?,
            signature: reader.option(Reader::signature)?,
        };
        if !reader.0.is_empty() {
            return Err(malformed("bytes follow the shard"));
        }
        shard.check()?;
        Ok(shard)
    }

    /// The bytes that are signed: every field but the signature, with a length if the field's length varies.
    pub(super) fn signed_bytes(&self) -> VramResult<Vec<u8>> {
        self.check()?;
        let since_epoch = self
            .sealed_at
            .duration_since(UNIX_EPOCH)
            .map_err(|_| malformed("sealed_at is before 1970"))?;
        let mut bytes = MAGIC.to_vec();
        push_text(&mut bytes, &self.shard_id);
        bytes.extend_from_slice(&self.gpu_device.to_le_bytes());
        bytes.extend_from_slice(&self.vram_bytes.to_le_bytes());
        push_text(&mut bytes, &self.digest);
        bytes.extend_from_slice(&since_epoch.as_secs().to_le_bytes());
        bytes.extend_from_slice(&since_epoch.subsec_nanos().to_le_bytes());
        bytes.push(self.model_ref.is_some().into());
        if let Some(model_ref) = &self.model_ref {
            push_text(&mut bytes, model_ref);
        }
        for number in [self.shard_index, self.total_shards] {
            bytes.push(number.is_some().into());
            bytes.extend(number.iter().flat_map(|number| number.to_le_bytes()));
        }
        Ok(bytes)
    }

    /// Ids and digests contain only allowed characters, sizes are not 0, and the index is below the number of parts.
    pub(super) fn check(&self) -> VramResult<()> {
        check_id(&self.shard_id)?;
        if self.vram_bytes == 0 {
            return Err(malformed("a shard of 0 bytes"));
        }
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_digest = self.digest.len() == DIGEST_CHARS && self.digest.bytes().all(is_hex);
        if !self.digest.is_empty() && !is_digest {
            return Err(malformed("a digest that is not 64 hex digits"));
        }
        if (self.model_ref.as_ref()).is_some_and(|text| text.len() > TEXT_BYTES_MAX) {
            return Err(malformed("a model_ref of more than 4096 bytes"));
        }
        match (self.shard_index, self.total_shards) {
            (Some(index), Some(total)) if index >= total => {
                Err(malformed("a shard_index not below total_shards"))
            }
            (_, Some(0)) => Err(malformed("total_shards of 0")),
            _ => Ok(()),
        }
    }
}

/// Shows nothing secret and no long text.
impl fmt::Debug for SealedShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.digest.get(..8).unwrap_or(&self.digest);
        f.debug_struct("SealedShard")
            .field("shard_id", &self.shard_id)
            .field("gpu_device", &self.gpu_device)
            .field("vram_bytes", &self.vram_bytes)
            .field("digest", &format_args!("{digest}…"))
            .field("sealed_at", &self.sealed_at)
            .finish_non_exhaustive()
    }
}

/// Allows 1 to 256 of a-z, A-Z, 0-9, hyphen and underscore: no character with a meaning in a path, a log or a shell.
pub(super) fn check_id(id: &str) -> VramResult<()> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > ID_CHARS_MAX || !id.bytes().all(is_good) {
        return Err(malformed(
            "a shard id that is not 1 to 256 letters, digits, hyphens and underscores",
        ));
    }
    Ok(())
}

fn malformed(what: &str) -> VramError {
    VramError::InvalidInput(what.to_owned())
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u32).to_le_bytes()); // checked to be short
    bytes.extend_from_slice(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> VramResult<&'a [u8]> {
        let (head, rest) =
            (self.0.split_at_checked(count)).ok_or_else(|| malformed("the shard ends early"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> VramResult<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> VramResult<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> VramResult<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn signature(&mut self) -> VramResult<[u8; 32]> {
        self.array()
    }

    fn text(&mut self) -> VramResult<String> {
        let length = self.u32()? as usize;
        if length > TEXT_BYTES_MAX {
            return Err(malformed("a text of more than 4096 bytes"));
        }
        let text = std::str::from_utf8(self.take(length)?);
        text.map(str::to_owned)
            .map_err(|_| malformed("a text that is not UTF-8"))
    }

    fn time(&mut self) -> VramResult<SystemTime> {
        let (seconds, nanoseconds) = (self.u64()?, self.u32()?);
        if nanoseconds >= 1_000_000_000 {
            return Err(malformed("a time with a second of nanoseconds"));
        }
        (UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds)))
            .ok_or_else(|| malformed("a time past all clocks"))
    }

    fn option<T>(&mut self, read: impl Fn(&mut Self) -> VramResult<T>) -> VramResult<Option<T>> {
        match self.array()? {
            [0] => Ok(None),
            [1] => read(self).map(Some),
            _ => Err(malformed("a mark that is neither 0 nor 1")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shard() -> SealedShard {
        SealedShard {
            shard_id: "shard-0123456789abcdef0123456789abcdef".into(),
            gpu_device: 2,
            vram_bytes: 77,
            digest: "ab".repeat(32),
            sealed_at: UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
            model_ref: Some("a/model".into()),
            shard_index: Some(1),
            total_shards: Some(3),
            signature: Some([9; 32]),
        }
    }

    #[test]
    fn encoding_comes_back_with_and_without_optional_fields() {
        let mut shard = shard();
        for clear in 0..5 {
            let bytes = shard.to_bytes().unwrap();
            assert_eq!(SealedShard::from_bytes(&bytes).unwrap(), shard);
            match clear {
                0 => shard.model_ref = None,
                1 => shard.shard_index = None,
                2 => shard.total_shards = None,
                3 => shard.signature = None,
                _ => {}
            }
        }
    }

    #[test]
    fn encoding_is_the_documented_one() {
        let mut shard = shard();
        (shard.model_ref, shard.shard_index) = (None, None);
        let mut expected = b"WCSEAL\0\x01\x26\0\0\0shard-0123456789abcdef0123456789abcdef".to_vec();
        expected.extend([2, 0, 0, 0]);
        expected.extend([77, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([64, 0, 0, 0]);
        expected.extend("ab".repeat(32).bytes());
        expected.extend(1_700_000_000u64.to_le_bytes());
        expected.extend(123_456_789u32.to_le_bytes());
        expected.extend([0, 0, 1, 3, 0, 0, 0]);
        assert_eq!(shard.signed_bytes().unwrap(), expected);
    }

    #[test]
    fn every_prefix_and_every_longer_one_is_refused() {
        let bytes = shard().to_bytes().unwrap();
        for length in 0..bytes.len() {
            assert!(
                SealedShard::from_bytes(&bytes[..length]).is_err(),
                "{length}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(SealedShard::from_bytes(&longer).is_err());
    }

    #[test]
    fn ids_of_other_characters_are_refused() {
        for good in ["a", "shard-1_B", &"x".repeat(256)] {
            check_id(good).unwrap();
        }
        for bad in [
            "",
            "..",
            "a/b",
            "a\\b",
            "a\0",
            "a\n",
            "é",
            "a b",
            &"x".repeat(257),
        ] {
            assert!(check_id(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn fields_that_make_no_sense_are_refused() {
        let refused = |change: fn(&mut SealedShard)| {
            let mut shard = shard();
            change(&mut shard);
            assert!(shard.to_bytes().is_err(), "{shard:?}");
        };
        refused(|shard| shard.vram_bytes = 0);
        refused(|shard| shard.digest = "AB".repeat(32));
        refused(|shard| shard.digest = "ab".into());
        refused(|shard| shard.shard_index = Some(3));
        refused(|shard| shard.total_shards = Some(0));
        refused(|shard| (shard.shard_index, shard.total_shards) = (None, Some(0)));
        refused(|shard| shard.model_ref = Some("x".repeat(4097)));
        refused(|shard| shard.sealed_at = UNIX_EPOCH - Duration::from_secs(1));
    }

    #[test]
    fn texts_and_times_are_read_up_to_their_limits() {
        let mut shard = shard();
        shard.model_ref = Some("x".repeat(4096));
        shard.sealed_at = UNIX_EPOCH + Duration::new(7, 999_999_999);
        let mut bytes = shard.to_bytes().unwrap();
        assert_eq!(SealedShard::from_bytes(&bytes).unwrap(), shard);
        let written = 999_999_999u32.to_le_bytes();
        let at = bytes.windows(4).position(|four| four == written).unwrap();
        bytes[at..][..4].copy_from_slice(&1_000_000_000u32.to_le_bytes());
        let error = SealedShard::from_bytes(&bytes).unwrap_err();
        assert!(error.to_string().contains("nanoseconds"), "{error}");
    }

    #[test]
    fn debug_shows_eight_characters_of_the_digest_and_no_signature() {
        let text = format!("{:?}", shard());
        assert!(
            text.contains("abababab…") && !text.contains("ababababa"),
            "{text}"
        );
        assert!(
            !text.contains("signature") && !text.contains("a/model"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_shard_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let framed = [&MAGIC[..], &bytes].concat();
            for input in [&bytes, &framed] {
                if let Ok(shard) = SealedShard::from_bytes(input) {
                    prop_assert_eq!(&shard.to_bytes().unwrap(), input);
                }
            }
        }
    }
}
