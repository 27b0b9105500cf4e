//! Stage 2: the fold of one `inbox` partition.
