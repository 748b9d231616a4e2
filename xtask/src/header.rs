//! `cargo xtask header`: include/vgpu.h from the types of vgpu-abi.
//! Owns how the header looks; never what is in it.

use anyhow::{Context, bail};

const SOURCE: &str = "crates/vgpu-abi/src/layout.rs";
const HEADER: &str = "include/vgpu.h";

/// Every type of the shared files. Types that these name come along.
const TYPES: [&str; 5] = [
    "RegionLayout",
    "LimitsLayout",
    "TargetsLayout",
    "HostFileHeader",
    "OomHolder",
];

const HEAD: &str = "\
/* The files that a GPU container and its host share: usage region, limits, targets.
 *
 * Made from crates/vgpu-abi/src/layout.rs by `cargo xtask header`; do not edit. Words that several
 * processes write are plain integers here: load them with __atomic_load_n, store them not at all,
 * and check what you read: the region is its tenant's to write. */";

const ALIGNED: &str = "\
#define VGPU_ALIGNED(n) __attribute__((aligned(n)))";

/// Writes the header, or with `check` fails where the committed one is stale.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let root = crate::root();
    let path = root.join(HEADER);
    let made = make(&root)?;
    if !check {
        std::fs::create_dir_all(root.join("include")).context("making include/")?;
        return std::fs::write(&path, made).with_context(|| format!("writing {HEADER}"));
    }
    let committed = std::fs::read_to_string(&path).with_context(|| format!("reading {HEADER}"))?;
    if committed != made {
        bail!("{HEADER} is stale: run `cargo xtask header` and commit it");
    }
    Ok(())
}

fn make(root: &std::path::Path) -> anyhow::Result<String> {
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        header: Some(HEAD.to_owned()),
        include_guard: Some("VGPU_H".to_owned()),
        after_includes: Some(ALIGNED.to_owned()),
        no_includes: true,
        sys_includes: vec!["stdint.h".to_owned()],
        cpp_compat: true,
        documentation_style: cbindgen::DocumentationStyle::C99,
        usize_is_size_t: true,
        line_length: 100,
        ..cbindgen::Config::default()
    };
    config.style = cbindgen::Style::Both;
    config.layout.aligned_n = Some("VGPU_ALIGNED".to_owned());
    // In a shared file an atomic is the integer that it holds.
    for bits in [8, 32, 64] {
        config
            .export
            .rename
            .insert(format!("AtomicU{bits}"), format!("uint{bits}_t"));
    }
    config.export.include = TYPES.map(str::to_owned).into();
    config.export.prefix = Some("Vgpu".to_owned());
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root.join(SOURCE))
        .generate()
        .context("reading the types of vgpu-abi")?;
    let mut made = Vec::new();
    bindings.write(&mut made);
    Ok(as_c_names(
        &String::from_utf8(made).context("the header is not text")?,
    ))
}

/// cbindgen puts one prefix before everything. A constant's is in capitals, C's own types have
/// none, and Rust's links in comments are plain words in C.
fn as_c_names(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    let mut pieces = text.split("Vgpu");
    made.push_str(pieces.next().unwrap_or_default());
    for name in pieces {
        let mut letters = name.chars();
        match (letters.next(), letters.next()) {
            (Some('u'), Some('i')) => {}
            (Some('A'..='Z'), Some('A'..='Z')) => made.push_str("VGPU_"),
            _ => made.push_str("Vgpu"),
        }
        made.push_str(name);
    }
    made.replace("[`", "").replace("`]", "")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_header_is_fresh() {
        super::run(true).unwrap();
    }
}
