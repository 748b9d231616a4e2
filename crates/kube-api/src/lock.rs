//! The node lock of the reference. Read only: nothing of ours takes or waits for one.
