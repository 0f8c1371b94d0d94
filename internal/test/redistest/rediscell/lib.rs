//! Empty: what is wanted is the dependency's library, which is the Redis module.
