//! The two classes of failure.

use std::fmt;

/// Whether the same operation can succeed if it is repeated unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The cause lies outside the operation (a timeout, a broker that is down): repeating it may succeed.
    Transient,
    /// The operation itself cannot succeed (bad data, a refused value): repeating it is waste.
    Permanent,
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorClass::Transient => "transient",
            ErrorClass::Permanent => "permanent",
        })
    }
}

/// Implemented by every error enum of the suite, by a `match` without a wildcard arm.
pub trait Classify {
    /// The class of this failure.
    fn class(&self) -> ErrorClass;

    /// Short for `class() == Transient`.
    fn is_transient(&self) -> bool {
        self.class() == ErrorClass::Transient
    }
}

impl<E: Classify + ?Sized> Classify for &E {
    fn class(&self) -> ErrorClass {
        (**self).class()
    }
}

impl<E: Classify + ?Sized> Classify for Box<E> {
    fn class(&self) -> ErrorClass {
        (**self).class()
    }
}

impl<E: Classify + ?Sized> Classify for std::sync::Arc<E> {
    fn class(&self) -> ErrorClass {
        (**self).class()
    }
}

/// An error type with no values never fails; it exists so that infallible operations fit generic code.
impl Classify for std::convert::Infallible {
    fn class(&self) -> ErrorClass {
        match *self {}
    }
}
