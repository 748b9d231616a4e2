//! The templates of the GPU pages and the values that each prints.

use askama::Template;

use super::view::detail::{GpuDetail, PodDetail};
use super::view::gpus::GpuList;
use super::view::namespaces::NamespaceList;
use super::view::overview::{Overview, PendingList};
use super::view::pods::PodList;
use crate::frame::Shell;

/// A page with its frame, and the part of it that is fetched again after a change.
macro_rules! page_and_part {
    ($page:ident, $part:ident, $field:ident: $value:ty, $of_page:literal, $of_part:literal) => {
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

page_and_part!(OverviewPage, OverviewPart, page: Overview, "gpus/overview.html", "gpus/overview_part.html");
page_and_part!(GpusPage, GpusPart, list: GpuList, "gpus/gpus.html", "gpus/gpus_part.html");
page_and_part!(PodsPage, PodsPart, list: PodList, "gpus/pods.html", "gpus/pods_part.html");
page_and_part!(NamespacesPage, NamespacesPart, list: NamespaceList, "gpus/namespaces.html", "gpus/namespaces_part.html");
page_and_part!(PendingPage, PendingPart, list: PendingList, "gpus/pending.html", "gpus/pending_part.html");
page_and_part!(PodPage, PodPart, pod: PodDetail, "gpus/pod.html", "gpus/pod_part.html");
page_and_part!(GpuPage, GpuPart, gpu: GpuDetail, "gpus/gpu.html", "gpus/gpu_part.html");
