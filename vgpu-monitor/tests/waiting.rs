//! Waiting for something to become so: the one place that knows how long a test waits before it fails.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::common::agent::HANGS;

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(5);

/// Asks until there is an answer. If there is none for longer than anything takes, the test fails with `what` and with
/// what was there instead.
#[track_caller]
pub(crate) fn found<T, S: Debug>(what: &str, mut ask: impl FnMut() -> Result<T, S>) -> T {
    let end = Instant::now() + HANGS;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(stands) => assert!(Instant::now() < end, "never {what}: {stands:#?}"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// The same for a question that waits.
pub(crate) async fn found_later<T, S: Debug>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, S>,
) -> T {
    let end = Instant::now() + HANGS;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(stands) => assert!(Instant::now() < end, "never {what}: {stands:#?}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until it holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    found(what, || holds().then_some(()).ok_or("not so"));
}

/// The same in a task.
pub(crate) async fn until_later(what: &str, mut holds: impl FnMut() -> bool) {
    found_later(what, async || holds().then_some(()).ok_or("not so")).await;
}

/// The same for a question that waits.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    found_later(what, async || holds().await.then_some(()).ok_or("not so")).await;
}
