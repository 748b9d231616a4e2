//! `cargo xtask crds`: the custom resource definitions of hcs.io, as the chart ships them, from the types of kube-api.
//! Owns how the file looks; never what is in it.

use anyhow::{Context, ensure};

const FILE: &str = "charts/vgpu/files/hcs-crds.yaml";

const HEAD: &str = "\
# The kinds of hcs.io/v1alpha1. Made from crates/kube-api/src/hcs by `cargo xtask crds`; do not edit.
# The chart applies this file with hcs.enabled=true. To apply it by hand:
#   kubectl apply --server-side -f hcs-crds.yaml
";

/// Writes the file, or with `check` fails where the committed one is stale.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    let path = crate::root().join(FILE);
    let made = make()?;
    if !check {
        return std::fs::write(&path, made).with_context(|| format!("writing {FILE}"));
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        committed == made,
        "{FILE} is stale: run `cargo xtask crds` and commit it"
    );
    Ok(())
}

fn make() -> anyhow::Result<String> {
    let mut out = HEAD.to_owned();
    for definition in kube_api::hcs::crd::definitions() {
        out.push_str("---\n");
        out.push_str(&serde_saphyr::to_string(&definition)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_definitions_are_fresh() {
        run(true).unwrap();
    }

    #[test]
    fn the_file_reads_back_as_the_definitions() {
        let read: Vec<serde_json::Value> = make()
            .unwrap()
            .split("\n---\n")
            .skip(1)
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect();

        assert_eq!(read, kube_api::hcs::crd::definitions());
    }
}
