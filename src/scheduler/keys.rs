//! Keys of pages: a BLAKE3 chain over the tokens of a sequence.

use std::fmt;

use super::Token;

/// Names the contents of one page: its tokens, all tokens before it, the model and the [`Salt`].
///
/// The key of page i is `blake3::keyed_hash(key of page i - 1, tokens of page i)` with the tokens as
/// little-endian `u32`. The chain starts with a hash of the model's digest and the salt, so sequences
/// of two models or of two salts have no key in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageKey(pub [u8; 32]);

impl PageKey {
    /// Start of the chains of one model and one salt.
    pub(super) fn root(model_digest: &[u8; 32], salt: &Salt) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("worker-cuda 1 page key root");
        hasher.update(model_digest).update(&salt.0);
        Self(*hasher.finalize().as_bytes())
    }

    /// The key of the page after this one. `tokens`: (page_tokens)
    pub(super) fn next(&self, tokens: &[Token]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in tokens.chunks(64) {
            let mut bytes = [0; 256];
            for (to, token) in bytes.chunks_exact_mut(4).zip(part) {
                to.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(&bytes[..4 * part.len()]);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// A number for hash tables. The bytes of a key are uniformly distributed already.
    pub(super) fn number(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(first)
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageKey({:016x}…)", self.number().swap_bytes())
    }
}

/// Separates cached pages: requests share pages only if their salts are equal. Otherwise the time to
/// the first token would show one tenant what another one has asked.
///
/// ```
/// use worker_cuda::scheduler::Salt;
///
/// let secret = [7; 32]; // random bytes of this process
/// let salt = Salt::new(&secret, b"api key", b"");
/// assert_ne!(salt, Salt::new(&secret, b"api key", b"one conversation"));
/// assert_ne!(salt, Salt::new(&secret, b"another key", b""));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Salt([u8; 32]);

impl Salt {
    /// The salt of one tenant, named by `tenant_key`. A caller's own `cache_salt` narrows it: it
    /// separates requests of the tenant and never joins those of two tenants.
    pub fn new(process_secret: &[u8; 32], tenant_key: &[u8], cache_salt: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(process_secret);
        hasher.update(&(tenant_key.len() as u64).to_le_bytes());
        hasher.update(tenant_key).update(cache_salt);
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salt(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_keyed_hash_of_its_tokens_under_the_key_before() {
        let root = PageKey::root(&[1; 32], &Salt::default());
        let tokens: Vec<Token> = (0..130).map(|i| i * 0x0101_0101).collect();

        let key = root.next(&tokens);

        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect();
        assert_eq!(key.0, *blake3::keyed_hash(&root.0, &bytes).as_bytes());
        assert_ne!(key, root.next(&tokens[..129]));
    }

    #[test]
    fn roots_differ_by_model_and_by_each_part_of_the_salt() {
        let salts = [
            Salt::new(&[0; 32], b"ab", b"c"),
            Salt::new(&[0; 32], b"a", b"bc"),
            Salt::new(&[0; 32], b"ab", b""),
            Salt::new(&[1; 32], b"ab", b"c"),
        ];
        let mut roots: Vec<PageKey> = salts
            .iter()
            .map(|salt| PageKey::root(&[0; 32], salt))
            .collect();
        roots.push(PageKey::root(&[1; 32], &salts[0]));

        for (index, root) in roots.iter().enumerate() {
            assert!(!roots[..index].contains(root), "root {index}");
        }
    }
}
