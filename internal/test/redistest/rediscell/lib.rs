//! This crate is empty: the library of its dependency is the Redis module.
