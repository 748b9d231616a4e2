//! The answer of a plugin. A reason takes a few bytes until a person reads it, because thousands of nodes share a few
//! reasons.

use std::borrow::Cow;
use std::sync::Arc;

use crate::names::{Names, Symbol};
use crate::plugin::Plugin;

/// The version of kube-scheduler whose texts are used; some of them changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Wording {
    /// kube-scheduler 1.32, as in the recorded simulator: an untolerated taint is named.
    V1_32,
    /// kube-scheduler 1.35.
    #[default]
    V1_35,
}

/// Why a node, or the pod as a whole, is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A fixed text.
    Fixed(&'static str),
    /// Too little of this resource.
    Insufficient(Symbol),
    /// A taint that the pod does not tolerate.
    Taint {
        /// Its key.
        key: Symbol,
        /// Its value.
        value: Symbol,
    },
    /// A text for this pod and node.
    Text(Arc<str>),
}

impl Reason {
    /// The text that kube-scheduler shows.
    pub fn text<'a>(&'a self, names: &'a Names, wording: Wording) -> Cow<'a, str> {
        match self {
            Self::Fixed(text) => Cow::Borrowed(text),
            Self::Insufficient(name) => Cow::Owned(format!("Insufficient {}", names.text(*name))),
            Self::Taint { key, value } => match wording {
                Wording::V1_32 => Cow::Owned(format!(
                    "node(s) had untolerated taint {{{}: {}}}",
                    names.text(*key),
                    names.text(*value)
                )),
                Wording::V1_35 => Cow::Borrowed("node(s) had untolerated taint(s)"),
            },
            Self::Text(text) => Cow::Borrowed(text),
        }
    }
}

/// Whether evicting other pods can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// It may (`Unschedulable`).
    Unschedulable,
    /// It cannot (`UnschedulableAndUnresolvable`).
    Unresolvable,
    /// The plugin could not decide (`Error`).
    Error,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The plugin that refuses; none for an extender or the framework itself.
    pub plugin: Option<Plugin>,
    /// Whether evicting pods can help.
    pub code: Code,
    /// The reasons.
    pub reasons: Reasons,
}

/// One reason, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reasons {
    /// One.
    One(Reason),
    /// Several, in order.
    Several(Box<[Reason]>),
}

impl Reasons {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Reason> {
        match self {
            Self::One(reason) => std::slice::from_ref(reason).iter(),
            Self::Several(reasons) => reasons.iter(),
        }
    }
}

impl Rejection {
    pub(crate) fn new(plugin: Plugin, code: Code, reason: Reason) -> Self {
        Self {
            plugin: Some(plugin),
            code,
            reasons: Reasons::One(reason),
        }
    }

    /// A refusal with a fixed text that eviction may help.
    pub(crate) fn unschedulable(plugin: Plugin, text: &'static str) -> Self {
        Self::new(plugin, Code::Unschedulable, Reason::Fixed(text))
    }

    /// A refusal with a fixed text that eviction cannot help.
    pub(crate) fn unresolvable(plugin: Plugin, text: &'static str) -> Self {
        Self::new(plugin, Code::Unresolvable, Reason::Fixed(text))
    }

    /// The reasons as one text, as `Status.Message` joins them.
    pub fn message(&self, names: &Names, wording: Wording) -> String {
        let texts: Vec<Cow<'_, str>> = self
            .reasons
            .iter()
            .map(|reason| reason.text(names, wording))
            .collect();
        texts.join(", ")
    }
}
