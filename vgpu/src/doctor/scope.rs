//! Chooses the scope of `vgpu doctor` by where the command runs.

use std::path::Path;

use crate::args::doctor::{DoctorArgs, Scope};

/// The default scope, and the reason for it.
pub(super) fn choose(args: &DoctorArgs) -> (Scope, String) {
    let root = args.root.as_deref().unwrap_or(Path::new("/"));
    let there = |path: &str| root.join(path.trim_start_matches('/')).exists();
    let variable = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let because = |scope, why: &str| (scope, why.to_owned());
    if args.kubeconfig.is_some() || args.context.is_some() {
        return because(Scope::Cluster, "a kubeconfig was given");
    }
    if there("/etc/vgpu/limits") {
        return because(Scope::Container, "/etc/vgpu/limits is here");
    }
    if args.root.is_none() && variable("VGPU_LIMITS") {
        return because(Scope::Container, "VGPU_LIMITS is set: this is a vgpu run");
    }
    if there("/var/lib/kubelet/device-plugins") {
        return because(Scope::Node, "/var/lib/kubelet/device-plugins is here");
    }
    if args.root.is_none() && variable("KUBERNETES_SERVICE_HOST") {
        return because(
            Scope::Container,
            "KUBERNETES_SERVICE_HOST is set and no kubelet is here: this is a pod",
        );
    }
    for sign in [
        "/var/lib/vgpu",
        "/proc/driver/nvidia/version",
        "/dev/nvidiactl",
    ] {
        if there(sign) {
            return because(Scope::Node, &format!("{sign} is here"));
        }
    }
    let home = std::env::var_os("HOME").unwrap_or_default();
    if args.root.is_none()
        && (variable("KUBECONFIG") || Path::new(&home).join(".kube/config").exists())
    {
        return because(Scope::Cluster, "there is a kubeconfig and no GPU");
    }
    because(
        Scope::Node,
        "neither limits, nor a GPU, nor a kubeconfig is here",
    )
}
