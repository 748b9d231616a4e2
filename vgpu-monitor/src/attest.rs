//! Which processes of the node hold a GPU without our library, or with another's limits. Never stops one by itself.
