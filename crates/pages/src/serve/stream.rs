//! The stream that notifies a page which of its topics changed.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, Sse};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::watch;

/// The least time between two events of a stream. Changes in between are sent as one event.
const GATHER: Duration = Duration::from_millis(200);

/// A silent stream sends `beat` after this time, so that a page notices a lost connection.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The topics that changed, for as long as a page listens. The first event is `hello`, with the number of changes so
/// far: it shows the page whether it missed a change since it was rendered. Each later event is `changed`, with the
/// names separated by spaces.
///
/// `changed` wakes the stream after each change; `versions` returns how often each topic has changed, in the order of
/// `names`. Neither may keep the site alive, because a listening page would then keep it running after the server ends.
pub(crate) fn stream<T: Send + Sync + 'static>(
    changed: watch::Receiver<T>,
    names: &'static [&'static str],
    versions: impl Fn() -> Vec<u64> + Send + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let told = versions();
    let all: u64 = told.iter().sum();
    // Browsers ignore an event without data.
    let first = stream::once(async move {
        let event = Event::default().event("hello");
        Ok(event.data(all.to_string()))
    });
    let rest = stream::unfold(
        (changed, versions, told),
        move |(mut changed, versions, mut told)| async move {
            loop {
                match tokio::time::timeout(HEARTBEAT, changed.changed()).await {
                    Err(_) => {
                        let beat = Event::default().event("beat").data("1");
                        return Some((Ok(beat), (changed, versions, told)));
                    }
                    Ok(Err(_)) => return None,
                    Ok(Ok(())) => {}
                }
                tokio::time::sleep(GATHER).await;
                changed.mark_unchanged();
                let now = versions();
                let differs = names
                    .iter()
                    .zip(now.iter().zip(&told))
                    .filter(|(_, (now, told))| now != told)
                    .map(|(name, _)| *name);
                let differing: Vec<&str> = differs.collect();
                told = now;
                if !differing.is_empty() {
                    let event = Event::default().event("changed");
                    let event = event.data(differing.join(" "));
                    return Some((Ok(event), (changed, versions, told)));
                }
            }
        },
    );
    Sse::new(first.chain(rest))
}
