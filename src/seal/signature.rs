//! Keyed BLAKE3 over a shard's encoding.

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

/// Never changes: another construction needs another context.
const CONTEXT: &str = "worker-cuda seal v1";

/// The key derived from a token; zeroed when it is dropped.
pub(super) struct SealKey(Zeroizing<[u8; 32]>);

impl SealKey {
    pub(super) fn derive(token: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(token);
        let mut output = hasher.finalize();
        let key = Self(Zeroizing::new(*output.as_bytes()));
        output.zeroize();
        hasher.zeroize(); // it holds the token's bytes
        key
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(message);
        let signature = *hasher.finalize().as_bytes();
        hasher.zeroize(); // it holds the key
        signature
    }

    /// Compares in constant time.
    pub(super) fn verify(&self, message: &[u8], signature: &[u8; 32]) -> bool {
        self.sign(message).ct_eq(signature).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_documented_construction() {
        let token = [7; 40];
        let key = SealKey::derive(&token);
        assert_eq!(*key.0, blake3::derive_key("worker-cuda seal v1", &token));
        let signature = key.sign(b"message");
        assert_eq!(
            signature,
            *blake3::keyed_hash(&key.0, b"message").as_bytes()
        );
        assert!(key.verify(b"message", &signature));
    }

    #[test]
    fn a_key_is_zeros_when_it_has_gone() {
        let mut place = std::mem::MaybeUninit::new(SealKey::derive(&[7; 32]));
        let bytes = place.as_ptr().cast::<[u8; 32]>();
        const { assert!(size_of::<SealKey>() == 32) };
        // SAFETY: the key is 32 bytes, which are there.
        assert_ne!(unsafe { bytes.read_volatile() }, [0; 32]);
        // SAFETY: it is there, and nobody uses it as a key afterwards.
        unsafe { place.assume_init_drop() };
        // SAFETY: the place is still there, with plain bytes in it.
        assert_eq!(unsafe { bytes.read_volatile() }, [0; 32]);
    }

    #[test]
    fn any_flipped_bit_of_message_signature_or_token_is_found() {
        let (token, message) = ([7u8; 32], b"the message".to_vec());
        let key = SealKey::derive(&token);
        let signature = key.sign(&message);
        for bit in 0..message.len() * 8 {
            let mut other = message.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verify(&other, &signature));
        }
        for bit in 0..256 {
            let mut other = signature;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verify(&message, &other));
            let mut other = token;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!SealKey::derive(&other).verify(&message, &signature));
        }
    }
}
