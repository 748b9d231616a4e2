//! A client of the API server with a rate limit, for operators that want one. Off by default, because a limit on calls
//! also limits how many pods are bound a second.

use std::time::Duration;

use kube::client::ClientBuilder;
use tower::limit::RateLimitLayer;

/// A client that makes at most `burst` calls at once and `per_second` in the long run; 0 means no limit.
///
/// # Errors
///
/// The configuration is not good for a client.
pub fn client(config: kube::Config, per_second: f64, burst: u32) -> kube::Result<kube::Client> {
    let builder = ClientBuilder::try_from(config)?;
    let burst = burst.max(1);
    match Duration::try_from_secs_f64(f64::from(burst) / per_second) {
        Ok(time) if per_second > 0.0 => {
            let layer = RateLimitLayer::new(burst.into(), time);
            Ok(builder.with_layer(&layer).build())
        }
        _ => Ok(builder.build()),
    }
}
