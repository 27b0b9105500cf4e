//! Routes and the hot window on Redis.
