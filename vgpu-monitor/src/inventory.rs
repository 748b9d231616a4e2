//! The node's cards as the driver and the configuration have them, and their registration on the Node object: what is
//! promised of each, how they reach each other, MIG shapes. Never says which of them a pod gets.
