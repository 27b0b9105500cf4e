//! W3C trace context (`traceparent`), the form in which a trace travels in record headers and gRPC metadata.
//!
//! `00-<32 hex trace id>-<16 hex parent span id>-<2 hex flags>`, lower case, ids not all zero. A higher version is read
//! by its first four fields, as the specification asks; version `ff` is refused. What does not parse is dropped by the
//! caller and a new context started: a bad header never fails a message.

use std::fmt;

use rand::Rng;

/// The name of the header or metadata key.
pub const HEADER: &str = "traceparent";

/// Length of a version 00 value in bytes.
pub const LENGTH: usize = 55;

const SAMPLED: u8 = 0x01;

/// One position in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace; never all zero in a parsed or new context.
    pub trace_id: [u8; 16],
    /// The span that caused what follows; never all zero in a parsed or new context.
    pub span_id: [u8; 8],
    /// Bit 0: the caller may have recorded the trace.
    pub flags: u8,
}

/// Why a value is not a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Too short, or more after a version 00 value.
    #[error("traceparent has {0} bytes, wanted {LENGTH}")]
    Length(usize),
    /// A separator is missing or a field is not lower case hex.
    #[error("traceparent is malformed at byte {0}")]
    Malformed(usize),
    /// Version `ff` does not exist.
    #[error("traceparent version ff is not valid")]
    Version,
    /// The trace id or the span id is all zero.
    #[error("traceparent has an all-zero {0}")]
    Zero(&'static str),
}

impl TraceContext {
    /// Whether the caller may have recorded the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The same trace and flags under a new span.
    #[must_use]
    pub fn child(&self, rng: &mut impl Rng) -> Self {
        Self {
            span_id: nonzero(rng),
            ..*self
        }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("00-")?;
        for byte in self.trace_id {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("-")?;
        for byte in self.span_id {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "-{:02x}", self.flags)
    }
}

impl std::str::FromStr for TraceContext {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self, Error> {
        parse(value)
    }
}

/// A new trace with a new span, not sampled (nothing records it yet).
pub fn new(rng: &mut impl Rng) -> TraceContext {
    TraceContext {
        trace_id: nonzero(rng),
        span_id: nonzero(rng),
        flags: 0,
    }
}

/// The header value, always version 00.
pub fn format(context: &TraceContext) -> String {
    context.to_string()
}

/// Reads a header value.
///
/// # Errors
/// [`Error`], with the place of the first fault.
pub fn parse(value: &str) -> Result<TraceContext, Error> {
    let bytes = value.as_bytes();
    if bytes.len() < LENGTH {
        return Err(Error::Length(bytes.len()));
    }
    let [version] = hex::<1>(bytes, 0)?;
    if version == 0xff {
        return Err(Error::Version);
    }
    if version == 0 && bytes.len() != LENGTH {
        return Err(Error::Length(bytes.len()));
    }
    for separator in [2, 35, 52].into_iter().chain((bytes.len() > LENGTH).then_some(LENGTH)) {
        if bytes[separator] != b'-' {
            return Err(Error::Malformed(separator));
        }
    }
    let trace_id = hex::<16>(bytes, 3)?;
    let span_id = hex::<8>(bytes, 36)?;
    let [flags] = hex::<1>(bytes, 53)?;
    if trace_id == [0; 16] {
        return Err(Error::Zero("trace id"));
    }
    if span_id == [0; 8] {
        return Err(Error::Zero("span id"));
    }
    Ok(TraceContext {
        trace_id,
        span_id,
        flags,
    })
}

/// Decodes `N` bytes of lower case hex at `start`; the caller has checked the length.
fn hex<const N: usize>(bytes: &[u8], start: usize) -> Result<[u8; N], Error> {
    let digit = |at: usize| match bytes[at] {
        digit @ b'0'..=b'9' => Ok(digit - b'0'),
        digit @ b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(Error::Malformed(at)),
    };
    let mut decoded = [0; N];
    for (index, byte) in decoded.iter_mut().enumerate() {
        let at = start + 2 * index;
        *byte = digit(at)? << 4 | digit(at + 1)?;
    }
    Ok(decoded)
}

/// Random bytes that are not all zero, which the specification forbids.
fn nonzero<const N: usize>(rng: &mut impl Rng) -> [u8; N] {
    let mut bytes = [0; N];
    rng.fill_bytes(&mut bytes);
    if bytes == [0; N] {
        bytes[N - 1] = 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn parses_the_example_of_the_specification() {
        let context = parse(GOOD).unwrap();
        assert_eq!(context.trace_id[..2], [0x4b, 0xf9]);
        assert_eq!(context.span_id[7], 0xb7);
        assert!(context.is_sampled());
        assert_eq!(format(&context), GOOD);
    }

    #[test]
    fn reads_higher_versions_by_their_first_fields() {
        let longer = format!("cc{}-what-the-future-holds", &GOOD[2..]);
        assert_eq!(parse(&longer).unwrap(), parse(GOOD).unwrap());
        assert_eq!(parse(&format!("cc{}.x", &GOOD[2..])), Err(Error::Malformed(LENGTH)));
    }

    #[test]
    fn refuses_what_is_not_a_traceparent() {
        assert_eq!(parse(""), Err(Error::Length(0)));
        assert_eq!(parse(&GOOD[..54]), Err(Error::Length(54)));
        assert_eq!(parse(&format!("{GOOD}-x")), Err(Error::Length(57)));
        assert_eq!(parse(&format!("ff{}", &GOOD[2..])), Err(Error::Version));
        assert_eq!(parse(&GOOD.to_uppercase()), Err(Error::Malformed(4)));
        assert_eq!(parse(&GOOD.replacen('-', "_", 1)), Err(Error::Malformed(2)));
        assert_eq!(
            parse(&format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32))),
            Err(Error::Zero("trace id"))
        );
        assert_eq!(
            parse(&format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16))),
            Err(Error::Zero("span id"))
        );
    }

    #[test]
    fn a_child_keeps_the_trace() {
        let mut rng = SmallRng::seed_from_u64(5);
        let parent = new(&mut rng);
        let child = parent.child(&mut rng);
        assert_eq!(child.trace_id, parent.trace_id);
        assert_ne!(child.span_id, parent.span_id);
    }

    proptest! {
        #[test]
        fn round_trips(seed: u64, flags: u8) {
            let context = TraceContext { flags, ..new(&mut SmallRng::seed_from_u64(seed)) };
            prop_assert_eq!(parse(&format(&context)), Ok(context));
        }

        #[test]
        fn never_panics(value in "\\PC{0,80}") {
            if let Ok(context) = parse(&value) {
                prop_assert!(value.is_ascii() || value.len() > LENGTH);
                prop_assert_eq!(parse(&format(&context)), Ok(context));
            }
        }
    }
}
