//! The one source of randomness of a test.

use std::hash::{BuildHasher, RandomState};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Sets the seed of a run, to repeat one that failed.
pub const VARIABLE: &str = "TIDINGS_TEST_SEED";

/// The generator of a test; its seed is printed, and taken from [`VARIABLE`] if that is set.
pub fn generator(test: &str) -> StdRng {
    let seed = std::env::var(VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| RandomState::new().hash_one(test));
    println!("{test}: {VARIABLE}={seed}");
    StdRng::seed_from_u64(seed)
}

/// A short name that no earlier run used: names of topics, keyspaces and users outlive a run on a shared stack.
pub fn run_name() -> String {
    let random = RandomState::new().hash_one(std::process::id());
    format!("t{:08x}", random & 0xffff_ffff)
}

/// A second generator that hangs on the first one's seed, for what runs at the same time.
pub fn fork(rng: &mut StdRng) -> StdRng {
    StdRng::seed_from_u64(rng.next_u64())
}
