//! The frame of every page: the title, the navigation, the state of the connection. Does not know what is in a page.

use crate::assets;

/// The frame of a page.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shell {
    /// The title of the page, as the browser shows it.
    pub(crate) title: String,
    /// The name of the site, which links to its first page.
    pub(crate) brand: &'static str,
    /// The navigation.
    pub(crate) entries: Vec<NavLink>,
    /// The menu of objects that can be created; empty for none.
    pub(crate) menu: Vec<NavLink>,
    /// A message about the action that led to this page; empty for none.
    pub(crate) done: String,
    /// The number of changes that the page has seen, or a smaller one. The page fetches later changes when its stream
    /// begins.
    pub(crate) seen: u64,
    /// The topics of the site's stream, separated by spaces.
    pub(crate) topics: String,
}

/// A link of the navigation or of the menu.
#[derive(Debug, Clone)]
pub(crate) struct NavLink {
    /// Its text.
    pub(crate) title: String,
    /// Its address.
    pub(crate) href: String,
    /// Whether the page belongs to this entry.
    here: bool,
}

impl NavLink {
    /// A link with this text. `here` says whether the page with the link belongs to this entry.
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
