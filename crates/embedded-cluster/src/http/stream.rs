//! A watch as an HTTP response: one line of JSON for each event, until the client or the time limit ends it.

use std::time::Duration;

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::format::Printer;
use crate::object::to_json;
use crate::status::Status;
use crate::store::Happened;
use crate::watch::{Event, Watch};

/// A watch without a timeout of the client's ends after half an hour, as in Kubernetes.
const LONGEST: Duration = Duration::from_secs(1800);
/// Events that are ready are sent together, up to this many bytes.
const TOGETHER: usize = 64 << 10;

pub(crate) struct Settings {
    pub(crate) seconds: Option<u64>,
    pub(crate) bookmarks: bool,
    pub(crate) bookmark_every: Duration,
    pub(crate) tell_start: bool,
}

struct Open {
    watch: Watch,
    printer: Printer,
    settings: Settings,
    until: Instant,
    bookmark_at: Instant,
    ended: bool,
}

pub(crate) fn body(watch: Watch, printer: Printer, settings: Settings) -> Body {
    let now = Instant::now();
    let lasts = settings
        .seconds
        .filter(|seconds| *seconds > 0)
        .map_or(LONGEST, |seconds| Duration::from_secs(seconds.min(86_400)));
    let open = Open {
        until: now + lasts,
        bookmark_at: now + settings.bookmark_every,
        watch,
        printer,
        settings,
        ended: false,
    };
    Body::from_stream(stream::unfold(open, |mut open| async move {
        let lines = open.next().await?;
        Some((Ok::<_, std::convert::Infallible>(lines), open))
    }))
}

impl Open {
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let mut lines = BytesMut::new();
        while lines.is_empty() && !self.ended {
            tokio::select! {
                event = self.watch.next() => {
                    self.print(event, &mut lines);
                    while lines.len() < TOGETHER && !self.ended {
                        match self.watch.try_next() {
                            Ok(None) => break,
                            Ok(Some(event)) => self.print(Ok(event), &mut lines),
                            Err(status) => self.print(Err(status), &mut lines),
                        }
                    }
                }
                () = sleep_until(self.bookmark_at), if self.settings.bookmarks => {
                    self.bookmark_at = Instant::now() + self.settings.bookmark_every;
                    self.bookmark(&mut lines, self.watch.resource_version(), false);
                }
                () = sleep_until(self.until) => {
                    self.ended = true;
                    if self.settings.bookmarks {
                        self.bookmark(&mut lines, self.watch.resource_version(), false);
                    }
                }
            }
        }
        (!lines.is_empty()).then(|| lines.freeze())
    }

    fn print(&mut self, event: Result<Event, Status>, lines: &mut BytesMut) {
        match event {
            Ok(Event::Object(happened, object)) => {
                let word = match happened {
                    Happened::Added => "ADDED",
                    Happened::Modified => "MODIFIED",
                    Happened::Deleted => "DELETED",
                };
                line(lines, word, &self.printer.object(&object));
            }
            Ok(Event::Started(version)) if self.settings.tell_start => {
                self.bookmark(lines, version, true)
            }
            Ok(Event::Started(_)) => {}
            Err(status) => {
                self.ended = true;
                line(lines, "ERROR", &to_json(&status.to_value()));
            }
        }
    }

    fn bookmark(&self, lines: &mut BytesMut, version: u64, started: bool) {
        let resource = &self.printer.resource;
        let mut metadata =
            json!({ "resourceVersion": version.to_string(), "creationTimestamp": Value::Null });
        if started {
            crate::object::set(
                &mut metadata,
                &["annotations", "k8s.io/initial-events-end"],
                "true".into(),
            );
        }
        let object = json!({
            "kind": resource.kind,
            "apiVersion": resource.api_version_of(&self.printer.version),
            "metadata": metadata,
        });
        line(lines, "BOOKMARK", &to_json(&object));
    }
}

fn line(lines: &mut BytesMut, word: &str, object: &[u8]) {
    lines.put_slice(b"{\"type\":\"");
    lines.put_slice(word.as_bytes());
    lines.put_slice(b"\",\"object\":");
    lines.put_slice(object);
    lines.put_slice(b"}\n");
}
