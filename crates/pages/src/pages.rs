//! The page templates and their values. No template decides anything.

use askama::Template;

use crate::board::OtherRow;
use crate::frame::{NavLink, Shell};
use crate::kind::Kind;
use crate::source::Why;
use crate::view::compare::Compared;
use crate::view::node::NodeCard;
use crate::view::overview::{NodeList, PendingList, PodList, Summary};
use crate::view::pod::PodPage;
use crate::view::{Slice, address};

/// The entries of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NavSection {
    Overview,
    Objects,
    Configuration,
    Compare,
    Data,
}

impl NavSection {
    /// The navigation of a page in this section.
    pub(crate) fn entries(self, compare: bool) -> Vec<NavLink> {
        let entry = |title: &str, href: &str, place| NavLink::new(title, href, self == place);
        let mut entries = vec![
            entry("Overview", "/", Self::Overview),
            entry("Objects", "/page/objects/nodes", Self::Objects),
            entry("Scheduler", "/page/configuration", Self::Configuration),
        ];
        if compare {
            entries.push(entry("Compare", "/page/compare", Self::Compare));
        }
        entries.push(entry("Import, export, reset", "/page/data", Self::Data));
        entries
    }
}

/// The menu of objects that can be created.
pub(crate) fn menu() -> Vec<NavLink> {
    let entry = |kind: Kind| {
        NavLink::new(
            format!("New {}", kind.singular()),
            address::new(kind),
            false,
        )
    };
    Kind::ALL.into_iter().map(entry).collect()
}

/// The address of a kind's pages.
#[derive(Debug, Clone)]
pub(crate) struct KindLink {
    pub(crate) title: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) new: String,
}

/// The first page.
#[derive(Debug, Template)]
#[template(path = "overview.html")]
pub(crate) struct OverviewPage {
    pub(crate) shell: Shell,
    /// Whether there are GPUs that the scheduler's configuration only counts.
    pub(crate) only_counted: bool,
    pub(crate) summary: Summary,
    pub(crate) pending: PendingList,
    pub(crate) nodes: NodeList,
    pub(crate) pods: PodList,
}

/// The numbers at the top of the first page.
#[derive(Debug, Template)]
#[template(path = "part/summary.html")]
pub(crate) struct SummaryPart {
    pub(crate) summary: Summary,
}

/// The pods that wait for a node.
#[derive(Debug, Template)]
#[template(path = "part/pending.html")]
pub(crate) struct PendingPart {
    pub(crate) pending: PendingList,
}

/// The nodes.
#[derive(Debug, Template)]
#[template(path = "part/nodes.html")]
pub(crate) struct NodesPart {
    pub(crate) nodes: NodeList,
}

/// The pods.
#[derive(Debug, Template)]
#[template(path = "part/pods.html")]
pub(crate) struct PodsPart {
    pub(crate) pods: PodList,
}

/// The changes that would help a pod.
#[derive(Debug, Template)]
#[template(path = "part/why.html")]
pub(crate) struct WhyPart {
    pub(crate) why: Option<Why>,
}

/// A pod.
#[derive(Debug, Template)]
#[template(path = "pod.html")]
pub(crate) struct PodDetail {
    pub(crate) shell: Shell,
    pub(crate) pod: PodPage,
}

/// The live part of a pod's page.
#[derive(Debug, Template)]
#[template(path = "part/pod.html")]
pub(crate) struct PodPart {
    pub(crate) pod: PodPage,
}

/// Shown instead of an object that was deleted while the page was open.
#[derive(Debug, Template)]
#[template(path = "part/gone.html")]
pub(crate) struct GonePart {
    /// The identifier of the live part.
    pub(crate) id: &'static str,
    pub(crate) what: String,
}

/// A node.
#[derive(Debug, Template)]
#[template(path = "node.html")]
pub(crate) struct NodeDetail {
    pub(crate) shell: Shell,
    /// The address of the live part.
    pub(crate) part: String,
    pub(crate) node: NodeCard,
    pub(crate) labels: Vec<String>,
    pub(crate) edit: String,
    pub(crate) delete: String,
}

/// The live part of a node's page.
#[derive(Debug, Template)]
#[template(path = "part/node.html")]
pub(crate) struct NodePart {
    pub(crate) part: String,
    pub(crate) node: NodeCard,
}

/// The objects of a kind.
#[derive(Debug, Template)]
#[template(path = "objects.html")]
pub(crate) struct ObjectsPage {
    pub(crate) shell: Shell,
    pub(crate) tabs: Vec<Tab>,
    pub(crate) kind: KindLink,
    pub(crate) list: ObjectList,
}

/// The pods as objects of a kind.
#[derive(Debug, Template)]
#[template(path = "pods.html")]
pub(crate) struct PodsPage {
    pub(crate) shell: Shell,
    pub(crate) tabs: Vec<Tab>,
    pub(crate) kind: KindLink,
    pub(crate) pods: PodList,
}

/// A kind above a list, and the number of its objects.
#[derive(Debug, Clone)]
pub(crate) struct Tab {
    pub(crate) title: &'static str,
    pub(crate) href: String,
    pub(crate) count: usize,
    pub(crate) current: &'static str,
}

/// The objects of a kind.
#[derive(Debug, Clone)]
pub(crate) struct ObjectList {
    pub(crate) rows: Vec<ObjectLine>,
    pub(crate) slice: Slice,
    pub(crate) text: String,
    pub(crate) all: usize,
    pub(crate) part: String,
    pub(crate) part_path: String,
    pub(crate) href: String,
    pub(crate) singular: &'static str,
    pub(crate) title: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespaced: bool,
}

/// An object in a list.
#[derive(Debug, Clone)]
pub(crate) struct ObjectLine {
    pub(crate) row: OtherRow,
    pub(crate) href: String,
    pub(crate) edit: String,
    pub(crate) delete: String,
}

/// The list of the objects of a kind.
#[derive(Debug, Template)]
#[template(path = "part/objects.html")]
pub(crate) struct ObjectsPart {
    pub(crate) list: ObjectList,
}

/// A page to edit a text: a new object, an object, or the configuration.
#[derive(Debug, Template)]
#[template(path = "edit.html")]
pub(crate) struct EditPage {
    pub(crate) shell: Shell,
    pub(crate) editor: Editor,
}

/// An editor with its text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Editor {
    /// The name of the edited object.
    pub(crate) heading: String,
    /// Instructions for the reader.
    pub(crate) help: String,
    /// The text.
    pub(crate) text: String,
    /// Why the last attempt was refused; empty before the first.
    pub(crate) error: String,
    /// The button's label.
    pub(crate) button: String,
    /// The address that the text is sent to.
    pub(crate) action: String,
    /// The address to return to without a change.
    pub(crate) back: String,
    /// Whether the text is the current configuration, which lacks the plugins for shared GPUs.
    pub(crate) lacks_gpus: bool,
    /// Other texts to start with.
    pub(crate) templates: Vec<TemplateLink>,
    /// The address for deleting the object; empty if it cannot be deleted.
    pub(crate) delete: String,
    /// The number of lines of the editor.
    pub(crate) lines: usize,
}

/// Another text to start with.
#[derive(Debug, Clone)]
pub(crate) struct TemplateLink {
    pub(crate) title: &'static str,
    pub(crate) href: String,
    pub(crate) current: &'static str,
}

/// A confirmation before an action that cannot be undone.
#[derive(Debug, Template)]
#[template(path = "confirm.html")]
pub(crate) struct ConfirmPage {
    pub(crate) shell: Shell,
    /// The question.
    pub(crate) question: String,
    /// The consequences.
    pub(crate) what: String,
    /// The button's label.
    pub(crate) button: String,
    /// The address that the confirmation is sent to.
    pub(crate) action: String,
    /// The address to return to without a change.
    pub(crate) back: String,
    /// Why the last attempt was refused; empty before the first.
    pub(crate) error: String,
}

/// Import, export and reset.
#[derive(Debug, Template)]
#[template(path = "data.html")]
pub(crate) struct DataPage {
    pub(crate) shell: Shell,
    /// Why the last import was refused; empty before the first.
    pub(crate) error: String,
    /// The text that was refused, so that it can be corrected.
    pub(crate) text: String,
    /// Whether existing objects are deleted first.
    pub(crate) replace: bool,
}

/// The comparison of several configurations.
#[derive(Debug, Template)]
#[template(path = "compare.html")]
pub(crate) struct ComparePage {
    pub(crate) shell: Shell,
    pub(crate) error: String,
    pub(crate) configuration: String,
    pub(crate) add_nodes: String,
    pub(crate) drain: String,
    pub(crate) anew: bool,
    pub(crate) compared: Option<Compared>,
}

/// An error page: something does not exist or failed.
#[derive(Debug, Template)]
#[template(path = "problem.html")]
pub(crate) struct ProblemPage {
    pub(crate) shell: Shell,
    pub(crate) heading: String,
    pub(crate) what: String,
}
