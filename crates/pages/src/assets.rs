//! The files that pages link to, compiled in: content, type and a hash that is part of their address, so that a
//! browser keeps each file until it changes.

use std::sync::LazyLock;

use sha2::Digest as _;

/// One file.
#[derive(Debug, Clone)]
pub(crate) struct Asset {
    /// Its name, as part of its address.
    pub(crate) name: &'static str,
    /// `Content-Type`.
    pub(crate) content_type: &'static str,
    /// Its content.
    pub(crate) bytes: &'static [u8],
    /// The first sixteen hex digits of the SHA-256 of the content.
    pub(crate) hash: String,
}

static ASSETS: LazyLock<[Asset; 4]> = LazyLock::new(|| {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    [
        asset(
            "page.css",
            "text/css; charset=utf-8",
            include_bytes!("../assets/page.css"),
        ),
        asset("page.js", SCRIPT, include_bytes!("../assets/page.js")),
        asset(
            "htmx.js",
            SCRIPT,
            include_bytes!("../assets/htmx-4.0.1.min.js"),
        ),
        asset(
            "icon.svg",
            "image/svg+xml",
            include_bytes!("../assets/icon.svg"),
        ),
    ]
});

fn asset(name: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Asset {
    let digest = sha2::Sha256::digest(bytes);
    let hash = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Asset {
        name,
        content_type,
        bytes,
        hash,
    }
}

/// The file of this name.
pub(crate) fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.name == name)
}

/// The address of the file of this name.
pub(crate) fn address(name: &str) -> String {
    let hash = find(name).map_or("", |asset| &asset.hash);
    format!("/page/assets/{name}?v={hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_changes_with_the_content() {
        let one = asset("a", "b", b"c");
        let other = asset("a", "b", b"d");

        assert_ne!(one.hash, other.hash);
        assert_eq!(one.hash.len(), 16);
        assert!(address("page.css").starts_with("/page/assets/page.css?v="));
    }
}
