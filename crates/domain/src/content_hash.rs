//! `content_hash`: 16 bytes over everything the user meant (architecture.md section 2).
//!
//! Two actions with the same idempotency key and different hashes are an `ID_CONFLICT`, never a silent drop (req:A5).

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// First 16 bytes of SHA-256 over the length-prefixed parts of a user's action.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContentHash(pub [u8; 16]);

impl ContentHash {
    /// Reads the 16 bytes of the wire form.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The 16 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Builds a [`ContentHash`]; each part is prefixed with its length, so that no two lists of parts collide.
#[derive(Debug, Default)]
pub struct ContentHasher(Sha256);

impl ContentHasher {
    /// An empty hasher.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one part.
    #[must_use]
    pub fn part(mut self, bytes: &[u8]) -> Self {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    /// The hash.
    #[must_use]
    pub fn finish(self) -> ContentHash {
        let digest = self.0.finalize();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        ContentHash(short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let ab_c = ContentHasher::new().part(b"ab").part(b"c").finish();
        let a_bc = ContentHasher::new().part(b"a").part(b"bc").finish();
        assert_ne!(ab_c, a_bc);
        assert_eq!(ab_c, ContentHasher::new().part(b"ab").part(b"c").finish());
    }
}
