//! Why a pod is not placed, and the smallest change after which it would be; where it is, where. `GET /explain`, and
//! what `vgpu explain` prints. Asks `placement` and never computes a fit itself; never changes anything.
