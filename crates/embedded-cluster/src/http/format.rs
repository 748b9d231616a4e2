//! The form of an answer: whole objects, only their metadata, or the table that `kubectl get` prints.

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use super::table::{self, Include, metadata_only};
use crate::object::{Stored, set, to_json};
use crate::resource::Resource;
use crate::status::Status;
use crate::target::Listed;

/// The form that a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Metadata,
    Table(Include),
}

impl Form {
    /// The first of the client's accepted forms that is supported.
    pub(crate) fn accepted(accept: &str, include: &str) -> Result<Self, Status> {
        let include = match include {
            "Object" => Include::Object,
            "None" => Include::Nothing,
            _ => Include::Metadata,
        };
        for wish in accept.split(',') {
            let mut parts = wish.split(';').map(str::trim);
            let json = matches!(
                parts.next(),
                Some("application/json" | "application/*" | "*/*" | "")
            );
            let mut asked = None;
            let mut supported = json;
            for part in parts {
                match part.split_once('=') {
                    Some(("as", form)) => asked = Some(form),
                    Some(("v", version)) => supported &= version == "v1",
                    Some(("stream", _)) => {}
                    _ => {}
                }
            }
            match asked {
                _ if !supported => {}
                None => return Ok(Self::Whole),
                Some("Table") => return Ok(Self::Table(include)),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    return Ok(Self::Metadata);
                }
                Some(_) => {}
            }
        }
        // A client that accepts only YAML or other formats gets JSON, or reports an error itself.
        if accept.contains("yaml") {
            Ok(Self::Whole)
        } else {
            Err(Status::not_acceptable())
        }
    }
}

/// One resource, in the form of one of its versions.
#[derive(Debug, Clone)]
pub(crate) struct Printer {
    pub(crate) resource: std::sync::Arc<Resource>,
    pub(crate) version: String,
    pub(crate) form: Form,
}

impl Printer {
    fn api_version(&self) -> String {
        self.resource.api_version_of(&self.version)
    }

    /// Whether the stored text can be sent unchanged.
    fn as_stored(&self) -> bool {
        let stored = self
            .resource
            .versions
            .first()
            .is_some_and(|version| version.name == self.version);
        stored && !self.is_new_event()
    }

    fn is_new_event(&self) -> bool {
        self.resource.group == "events.k8s.io"
    }

    fn value(&self, object: &Stored) -> Value {
        let mut value = object.value();
        if self.is_new_event() {
            crate::events::to_new(&mut value);
        } else if !self.as_stored() {
            set(&mut value, &["apiVersion"], self.api_version().into());
        }
        value
    }

    /// A single object; a watch sends a table for each one.
    pub(crate) fn object(&self, object: &Stored) -> Bytes {
        match self.form {
            Form::Whole if self.as_stored() => object.json(),
            Form::Whole => to_json(&self.value(object)).into(),
            Form::Metadata => to_json(&metadata_only(&self.value(object))).into(),
            Form::Table(include) => {
                let rows = [self.value(object)];
                to_json(&table::table(
                    &self.resource,
                    &self.version,
                    &rows,
                    include,
                    &json!({}),
                    true,
                ))
                .into()
            }
        }
    }

    /// A list, in pieces, so that it is never in memory as a whole.
    pub(crate) fn list(self, listed: Listed) -> Box<dyn Iterator<Item = Bytes> + Send> {
        let mut metadata = json!({ "resourceVersion": listed.resource_version.to_string() });
        if !listed.continue_token.is_empty() {
            set(
                &mut metadata,
                &["continue"],
                listed.continue_token.as_str().into(),
            );
        }
        if let Some(remaining) = listed.remaining {
            set(&mut metadata, &["remainingItemCount"], remaining.into());
        }
        let (kind, api_version) = match self.form {
            Form::Whole => (self.resource.list_kind.clone(), self.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".into(), "meta.k8s.io/v1".into()),
            Form::Table(include) => {
                let rows: Vec<Value> = listed
                    .items
                    .iter()
                    .map(|object| self.value(object))
                    .collect();
                let table = table::table(
                    &self.resource,
                    &self.version,
                    &rows,
                    include,
                    &metadata,
                    true,
                );
                return Box::new(std::iter::once(to_json(&table).into()));
            }
        };
        let head =
            json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata, "items": [] });
        let mut head = to_json(&head);
        // The items go between the last pair of brackets before the end of `metadata`, whatever the order of the
        // fields.
        let split = find(&head, b"\"items\":[").map_or(head.len(), |at| at + b"\"items\":[".len());
        let tail = Bytes::from(head.split_off(split));
        Box::new(Pieces {
            head: Some(head.into()),
            items: listed.items.into_iter(),
            first: true,
            printer: self,
            tail: Some(tail),
        })
    }
}

struct Pieces {
    head: Option<Bytes>,
    items: std::vec::IntoIter<std::sync::Arc<Stored>>,
    first: bool,
    printer: Printer,
    tail: Option<Bytes>,
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        const PIECE: usize = 64 << 10;
        self.tail.as_ref()?;
        let mut piece = BytesMut::with_capacity(PIECE);
        if let Some(head) = self.head.take() {
            piece.put(head);
        }
        while piece.len() < PIECE {
            let Some(object) = self.items.next() else {
                piece.extend(self.tail.take());
                break;
            };
            if !std::mem::take(&mut self.first) {
                piece.put_u8(b',');
            }
            piece.put(self.printer.object(&object));
        }
        Some(piece.freeze())
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).rposition(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_can_be_met_is_taken() {
        let form = |accept| Form::accepted(accept, "").map_err(|status| status.code);
        assert_eq!(form("application/json"), Ok(Form::Whole));
        assert_eq!(form(""), Ok(Form::Whole));
        assert_eq!(
            form("application/vnd.kubernetes.protobuf,application/json"),
            Ok(Form::Whole)
        );
        assert_eq!(form("application/vnd.kubernetes.protobuf"), Err(406));
        assert_eq!(
            form(
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            ),
            Ok(Form::Table(Include::Metadata))
        );
        assert_eq!(
            form("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Ok(Form::Metadata)
        );
    }
}
