//! The templates of the GPU pages and the values that each prints.

use askama::Template;

use super::view::detail::{GpuDetail, GpuPodDetail};
use super::view::gpus::GpuList;
use super::view::namespaces::NamespaceList;
use super::view::overview::{GpuPendingList, Overview};
use super::view::pods::GpuPodList;
use crate::frame::Shell;

/// A page with its frame, and the part of it that is fetched again after a change.
macro_rules! page_and_part {
    (struct $page:ident, struct $part:ident, $field:ident: $value:ty, $of_page:literal, $of_part:literal) => {
        #[derive(Debug, Template)]
        #[template(path = $of_page)]
        pub(super) struct $page {
            pub(super) shell: Shell,
            pub(super) $field: $value,
        }

        #[derive(Debug, Template)]
        #[template(path = $of_part)]
        pub(super) struct $part {
            pub(super) $field: $value,
        }
    };
}

page_and_part!(struct GpuOverviewPage, struct GpuOverviewPart, page: Overview, "gpus/overview.html", "gpus/overview_part.html");
page_and_part!(struct GpusPage, struct GpusPart, list: GpuList, "gpus/gpus.html", "gpus/gpus_part.html");
page_and_part!(struct GpuPodsPage, struct GpuPodsPart, list: GpuPodList, "gpus/pods.html", "gpus/pods_part.html");
page_and_part!(struct NamespacesPage, struct NamespacesPart, list: NamespaceList, "gpus/namespaces.html", "gpus/namespaces_part.html");
page_and_part!(struct GpuPendingPage, struct GpuPendingPart, list: GpuPendingList, "gpus/pending.html", "gpus/pending_part.html");
page_and_part!(struct GpuPodPage, struct GpuPodPart, pod: GpuPodDetail, "gpus/pod.html", "gpus/pod_part.html");
page_and_part!(struct GpuPage, struct GpuPart, gpu: GpuDetail, "gpus/gpu.html", "gpus/gpu_part.html");
