//! A client of the API server with a limit on its calls, where an operator wants one. Never on by itself: a limit on
//! calls is a limit on pods a second.

use std::time::Duration;

use kube::client::ClientBuilder;
use tower::limit::RateLimitLayer;

/// A client that makes at most `burst` calls at once and `per_second` in the long run; 0 is no limit.
///
/// # Errors
///
/// Why the configuration makes no client.
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
