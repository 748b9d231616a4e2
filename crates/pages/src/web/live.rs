//! Keeps open pages up to date: a task that follows the source, and the stream that notifies a page which kinds
//! changed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::{Stream, StreamExt as _};
use parking_lot::RwLock;
use tokio::sync::{oneshot, watch};

use super::Site;
use crate::board::Board;
use crate::kind::Kind;
use crate::serve::stream::stream;
use crate::source::Source;

/// The wait before a source that stopped is followed again.
const AGAIN: Duration = Duration::from_millis(500);

/// Applies every change of the source to the board, until `gone`.
pub(super) async fn follow(
    source: Arc<dyn Source>,
    board: Arc<RwLock<Board>>,
    bell: watch::Sender<u64>,
    mut gone: oneshot::Receiver<()>,
) {
    loop {
        let mut changes = source.changes();
        loop {
            let change = tokio::select! {
                change = changes.next() => change,
                _ = &mut gone => return,
            };
            let Some(change) = change else { break };
            board.write().apply(&change);
            bell.send_modify(|count| *count += 1);
        }
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            _ = &mut gone => return,
        }
    }
}

/// A stream of the kinds that changed, by their plural names, for as long as a page listens.
pub(super) async fn events(
    State(site): State<Site>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changed = site.0.changed.clone();
    let board = Arc::clone(&site.0.board);
    stream(changed, &Kind::PLURALS, move || {
        let board = board.read();
        Kind::ALL.map(|kind| board.version(kind)).to_vec()
    })
}
