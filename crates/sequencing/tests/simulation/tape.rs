//! The source of every choice of a schedule: a tape of numbers. A shorter or smaller tape is a simpler schedule, so a
//! failing one shrinks; past its end every choice is the first, which is always the harmless one.

#[derive(Debug)]
pub(crate) struct Tape {
    choices: Vec<u16>,
    next: usize,
}

impl Tape {
    pub(crate) fn new(choices: Vec<u16>) -> Self {
        Self { choices, next: 0 }
    }

    /// A tape from a seed (xorshift64*).
    pub(crate) fn seeded(seed: u64, length: usize) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let choices = (0..length)
            .map(|_| {
                state ^= state >> 12;
                state ^= state << 25;
                state ^= state >> 27;
                (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 48) as u16
            })
            .collect();
        Self::new(choices)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.next >= self.choices.len()
    }

    pub(crate) fn pick(&mut self, among: usize) -> usize {
        let choice = self.choices.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        usize::from(choice) % among
    }

    /// True in about `percent` of cases, never past the end.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.pick(100) >= 100 - percent
    }
}
