//! The crates depend on each other as docs/architecture.md draws it.

#[path = "../../xtask/src/graph.rs"]
mod graph;

#[test]
fn crates_depend_as_the_architecture_document_draws() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap();

    let differences = graph::differences(root).unwrap();

    assert_eq!(differences, Vec::<String>::new());
}
