//! What keeps pages up to date: a task that follows the source, and the stream that tells a page which kinds changed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::{Stream, StreamExt as _, stream};
use parking_lot::RwLock;
use tokio::sync::{oneshot, watch};

use super::Site;
use crate::board::Board;
use crate::kind::Kind;
use crate::source::Source;

/// The least time between two events of a stream: what happens meanwhile is one event.
const GATHER: Duration = Duration::from_millis(200);

/// After how long a silent stream says `beat`, so that a page knows a connection that is lost without a word.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long to wait before a source is followed again that stopped.
const AGAIN: Duration = Duration::from_millis(500);

/// Puts every change of the source on the board, until `gone`.
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

/// Which kinds changed, for as long as a page listens: first `event: hello` with the number of changes so far, which
/// tells a page whether it missed one since it was made; then `event: changed` with the plural names, a blank between them.
pub(super) async fn events(
    State(site): State<Site>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changed = site.0.changed.clone();
    let board = Arc::clone(&site.0.board);
    let (told, all) = {
        let board = board.read();
        (versions(&board), board.changes())
    };
    // An event without data is none to a browser.
    // The site is not held: a page that listens would keep the task alive when the server goes.
    let first = stream::once(async move {
        let event = Event::default().event("hello");
        Ok(event.data(all.to_string()))
    });
    let rest = stream::unfold(
        (changed, board, told),
        |(mut changed, board, mut told)| async move {
            loop {
                match tokio::time::timeout(HEARTBEAT, changed.changed()).await {
                    Err(_) => {
                        let beat = Event::default().event("beat").data("1");
                        return Some((Ok(beat), (changed, board, told)));
                    }
                    Ok(Err(_)) => return None,
                    Ok(Ok(())) => {}
                }
                tokio::time::sleep(GATHER).await;
                changed.mark_unchanged();
                let now = versions(&board.read());
                let differs = Kind::ALL
                    .into_iter()
                    .zip(now.iter().zip(&told))
                    .filter(|(_, (now, told))| now != told)
                    .map(|(kind, _)| kind.plural());
                let kinds: Vec<&str> = differs.collect();
                told = now;
                if !kinds.is_empty() {
                    let event = Event::default().event("changed").data(kinds.join(" "));
                    return Some((Ok(event), (changed, board, told)));
                }
            }
        },
    );
    Sse::new(first.chain(rest))
}

fn versions(board: &Board) -> [u64; 7] {
    Kind::ALL.map(|kind| board.version(kind))
}
