//! The Kafka adapter.
