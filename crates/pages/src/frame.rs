//! What stands around every page: the title, the navigation, the state of the connection. Never what is in a page.

use crate::assets;

/// What stands around a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shell {
    /// The title of the page, as the browser shows it.
    pub(crate) title: String,
    /// The name of the whole site, which leads to its first page.
    pub(crate) brand: &'static str,
    /// The navigation.
    pub(crate) entries: Vec<Entry>,
    /// The menu of what can be made; empty for none.
    pub(crate) menu: Vec<Entry>,
    /// Something that was done; empty for nothing.
    pub(crate) done: String,
    /// How many changes the page has seen, or fewer: what came later is fetched when its stream begins.
    pub(crate) seen: u64,
    /// What can change on this site, with a blank between: the names that its stream tells.
    pub(crate) topics: String,
}

/// A link of the navigation or of the menu.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// What it says.
    pub(crate) title: String,
    /// Where it leads.
    pub(crate) href: String,
    /// Whether the page belongs to it.
    here: bool,
}

impl Entry {
    /// A link with this text. `here` says whether the page that has the link belongs to it.
    pub(crate) fn new(title: impl Into<String>, href: impl Into<String>, here: bool) -> Self {
        Self {
            title: title.into(),
            href: href.into(),
            here,
        }
    }

    /// The value of `aria-current`.
    pub(crate) fn current(&self) -> &'static str {
        if self.here { "page" } else { "false" }
    }
}

impl Shell {
    #[expect(
        clippy::unused_self,
        reason = "a template calls methods of what it has"
    )]
    pub(crate) fn asset(&self, name: &str) -> String {
        assets::address(name)
    }
}
