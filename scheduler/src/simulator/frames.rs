//! Changes of the seven kinds, one event at a time: the contents of `GET /api/v1/listwatchresources`.

use std::collections::HashMap;

use embedded_cluster::{Cluster, Event, Happened, Selector, Start, Target, Watch};
use futures_util::stream::{BoxStream, SelectAll, select_all, unfold};
use futures_util::{Stream, StreamExt};

use super::Refusal;
use super::kinds::{KINDS, Kind, without_type};

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// `{"Kind":…,"EventType":…,"Obj":…}`, without a line end.
    pub json: String,
    /// The version up to which the kind has been reported.
    pub version: u64,
}

/// Where the watch of a kind starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Since {
    /// With the existing objects.
    #[default]
    Now,
    /// With the changes after this version.
    Version(u64),
}

/// Where the watch of each kind starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Starts(HashMap<&'static str, Since>);

impl Starts {
    /// Reads the parameters: `podsLastResourceVersion` and the like, in any case of their letters, and `namespace` or
    /// `namespaces`. Empty ones and other parameters are ignored.
    ///
    /// # Errors
    ///
    /// The parameter that is not a version.
    pub fn read<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Refusal> {
        let mut starts = HashMap::new();
        for (name, value) in parameters {
            let lower = name.to_ascii_lowercase();
            let Some(short) = lower.strip_suffix("lastresourceversion") else {
                continue;
            };
            let short = if short == "namespaces" {
                "namespace"
            } else {
                short
            };
            let Some(kind) = KINDS.iter().find(|kind| kind.short == short) else {
                continue;
            };
            if value.is_empty() {
                continue;
            }
            let version: u64 = value.parse().map_err(|_| {
                Refusal::Unreadable(format!(
                    "{name}: \"{value}\" is not a resource version; expected a number such as an object's \
                     metadata.resourceVersion, or nothing to begin with what there is"
                ))
            })?;
            if version > 0 {
                starts.insert(kind.plural, Since::Version(version));
            }
        }
        Ok(Self(starts))
    }
}

/// The stream of events. It ends when a watch falls behind the changes that the cluster keeps.
pub struct Frames {
    each: SelectAll<BoxStream<'static, Option<Frame>>>,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").finish_non_exhaustive()
    }
}

impl Frames {
    pub(super) fn open(cluster: &Cluster, starts: &Starts) -> Result<Self, Refusal> {
        let current = cluster.resource_version();
        let mut each = Vec::new();
        for kind in KINDS {
            let start = match starts.0.get(kind.plural).copied().unwrap_or_default() {
                Since::Now => Start::Now,
                Since::Version(version) if version > current => {
                    return Err(Refusal::Unreadable(format!(
                        "{}LastResourceVersion: {version} is newer than this cluster's newest version, {current}; \
                         begin with what there is, by leaving the parameter out",
                        kind.short
                    )));
                }
                Since::Version(version) => Start::After(version),
            };
            let target = Target::collection(&kind.resource(cluster)?, "");
            let mut watch = cluster.watch(&target, Selector::default(), start)?;
            // A version that is too old is detected here, where a status code can still report it.
            let first = watch.try_next()?;
            each.push(of_kind(kind, watch, first).boxed());
        }
        Ok(Self {
            each: select_all(each),
        })
    }

    /// The events as a stream, which ends when the first watch ends.
    pub fn into_stream(self) -> impl Stream<Item = Frame> + Send + 'static {
        self.each
            .take_while(|frame| std::future::ready(frame.is_some()))
            .filter_map(std::future::ready)
    }
}

/// The events of one kind; none after its watch has fallen behind.
fn of_kind(
    kind: Kind,
    watch: Watch,
    first: Option<Event>,
) -> impl Stream<Item = Option<Frame>> + Send {
    unfold((watch, first), move |(mut watch, first)| async move {
        let mut next = first;
        loop {
            let event = match next.take() {
                Some(event) => Ok(event),
                None => watch.next().await,
            };
            match event {
                Ok(Event::Object(happened, object)) => {
                    let frame = Frame {
                        json: print(kind, happened, object.value()),
                        version: object.resource_version(),
                    };
                    return Some((Some(frame), (watch, None)));
                }
                Ok(Event::Started(_)) => {}
                Err(status) => {
                    tracing::debug!(kind = kind.plural, %status, "a stream ends");
                    return Some((None, (watch, None)));
                }
            }
        }
    })
}

fn print(kind: Kind, happened: Happened, object: serde_json::Value) -> String {
    let event = match happened {
        Happened::Added => "ADDED",
        Happened::Modified => "MODIFIED",
        Happened::Deleted => "DELETED",
    };
    let object = without_type(object);
    format!(
        "{{\"Kind\":\"{}\",\"EventType\":\"{event}\",\"Obj\":{object}}}",
        kind.plural
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_a_parameter_are_read() {
        let read = |name, value| Starts::read([(name, value)]);
        let pods = read("podsLastResourceVersion", "7").unwrap();

        assert_eq!(read("podslastResourceVersion", "7").unwrap(), pods);
        assert_eq!(
            read("namespaceLastResourceVersion", "7").unwrap(),
            read("namespaceslastResourceVersion", "7").unwrap()
        );
        assert_ne!(pods, Starts::default());
        for nothing in [
            ("podsLastResourceVersion", ""),
            ("podsLastResourceVersion", "0"),
            ("other", "x"),
        ] {
            assert_eq!(Starts::read([nothing]).unwrap(), Starts::default());
        }
        for wrong in ["abc", "-1", "1.5", "99999999999999999999"] {
            let refusal = read("pvsLastResourceVersion", wrong).unwrap_err();
            assert!(matches!(&refusal, Refusal::Unreadable(text) if text.contains(wrong)));
        }
    }
}
