//! Which pod and container a process belongs to, by the path of its control group: text in, names out. Never reads a
//! file.
//!
//! Examples of paths (runtimes and cgroup drivers differ, versions 1 and 2 alike):
//! `/kubepods/burstable/pod<uid>/<container>`,
//! `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/cri-containerd-<container>.scope`.
//! Seen from a control-group namespace of its own a path may begin with `/../..`; below the container's part there may
//! be more (a container in a container, systemd in a container).

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodContainer {
    /// Uid of the pod.
    pub pod_uid: String,
    /// Id of the container at the runtime; empty for a process that is in the pod and in no container.
    pub container_id: String,
}

/// Reads `/proc/PID/cgroup`. The first hierarchy that names a pod counts.
#[must_use]
pub fn of(cgroup: &str) -> Option<PodContainer> {
    cgroup.lines().find_map(|line| {
        // number:controllers:path
        let path = line.splitn(3, ':').nth(2)?;
        of_path(path)
    })
}

fn of_path(path: &str) -> Option<PodContainer> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let pod_uid = parts.find_map(pod_uid)?;
    let container_id = parts.next().map(container_id).unwrap_or_default();
    Some(PodContainer {
        pod_uid,
        container_id,
    })
}

/// The pod of a control group with this name: `pod<uid>`, or `kubepods[-class]-pod<uid with _>.slice`, which has more in
/// front where the kubelet was given a group of its own.
#[must_use]
pub fn pod_uid(part: &str) -> Option<String> {
    let (uid, systemd) = match part.strip_suffix(".slice") {
        Some(slice) => {
            let (above, uid) = slice.rsplit_once("-pod")?;
            above.split('-').find(|&word| word == "kubepods")?;
            (uid, true)
        }
        None => (part.strip_prefix("pod")?, false),
    };
    let uid = if systemd {
        uid.replace('_', "-")
    } else {
        uid.to_owned()
    };
    // A uid consists of these letters (also that of a static pod, which is a hash); a longer text was forged.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    ((8..=64).contains(&uid.len()) && uid.bytes().all(plain)).then_some(uid)
}

/// `<id>`, or `runtime-<id>.scope`, or `runtime-conmon-<id>.scope`.
fn container_id(part: &str) -> String {
    let id = part.strip_suffix(".scope").unwrap_or(part);
    let id = id.rsplit_once('-').map_or(id, |(_, id)| id);
    // containerd without systemd: `<slice>:cri-containerd:<id>`.
    let id = id.rsplit_once(':').map_or(id, |(_, id)| id);
    id.chars()
        .filter(char::is_ascii_alphanumeric)
        .take(64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_is_found_in_every_cgroup_path_form() {
        const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";
        const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let dashed = UID.replace('-', "_");
        let forms = [
            format!("12:devices:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/kubepods/burstable/pod{UID}/{ID}"),
            format!("0::/kubepods/pod{UID}/{ID}"),
            format!("0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{dashed}.slice/cri-containerd-{ID}.scope"),
            format!("0::/kubepods.slice/kubepods-pod{dashed}.slice/crio-{ID}.scope"),
            format!("0::/../../kubepods-burstable-pod{dashed}.slice/docker-{ID}.scope"),
            format!("0::/../../../burstable/pod{UID}/{ID}/docker/feedbeef/init.scope"),
            format!("0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{dashed}.slice/cri-containerd-{ID}.scope"),
            format!("4:memory:/\n3:cpu:/user.slice\n0::/kubelet.slice/kubepods/burstable/pod{UID}/{ID}"),
            format!("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{dashed}.slice:cri-containerd:{ID}").replace(".slice:cri", ".slice/x.slice:cri"),
        ];
        for form in forms {
            let place = of(&form).unwrap_or_else(|| panic!("{form}"));
            assert_eq!(place.pod_uid, UID, "{form}");
            assert_eq!(place.container_id, ID, "{form}");
        }
    }

    #[test]
    fn host_process_belongs_to_no_pod() {
        for text in [
            "",
            "0::/",
            "0::/init.scope",
            "0::/system.slice/nvidia-persistenced.service",
            "0::/user.slice/user-1000.slice/podman-pod.slice",
            "nonsense",
            "0::/pod/x",
            "0::/podcasts/x",
            "0::/kubepods/pod../x",
            "0::/system.slice/docker-0123456789abcdef.scope",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
