//! The kubelet's device plugin: anonymous slots, and whose they are. Never chooses a card: the scheduler has.
