//! The contract of the frames: pinned JSON forms, round trips, wire twins, admission.

mod admission;
mod golden;
mod json;
mod round_trip;
mod samples;
mod twins;
