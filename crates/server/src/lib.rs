//! Serve, health, metrics, logging, shutdown: once for every daemon.
