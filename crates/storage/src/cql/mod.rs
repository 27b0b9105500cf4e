//! The stores on ScyllaDB or Apache Cassandra 5.
