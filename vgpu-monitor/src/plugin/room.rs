//! Whether a GPU has room for a new pod, given what living pods already hold of it. Values in, values out;
//! `placement` does the sums. Never decides which pods live: the caller passes them.

use std::collections::BTreeMap;

use placement::{Cluster, Granted, Instance, InvalidNode, Node, Placement, Pod};

use super::allotments::{Allotment, Recipient};
use super::identity::listed;
use crate::node_gpus::Inventory;

/// Why there is no room.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The node's own GPUs cannot be counted, whichever pods hold them.
    #[error("{0}")]
    Node(#[from] InvalidNode),
    /// A GPU would have to give more than it has.
    #[error("GPU {gpu} would have to give {excess}; the others there are {others}")]
    Full {
        /// The GPU.
        gpu: String,
        /// The amount, beside what the GPU has.
        excess: String,
        /// The pods that hold shares of it.
        others: String,
    },
}

/// The containers of each pod that were given shares, by the pod's uid.
pub fn by_pod(allotments: &[Allotment]) -> BTreeMap<&str, Vec<&Recipient>> {
    let mut pods: BTreeMap<&str, Vec<&Recipient>> = BTreeMap::new();
    for allotment in allotments {
        if let Some(recipient) = &allotment.recipient {
            let recipients = pods.entry(recipient.uid.as_str()).or_default();
            // The kubelet asked again for this container: the newer one is it.
            recipients.retain(|older| older.container != recipient.container);
            recipients.push(recipient);
        }
    }
    pods
}

/// Whether the node has room for the shares of one pod beside those of the `others`, by uid.
///
/// # Errors
///
/// Which GPU has not enough of what, and which pods hold it.
pub fn check(
    inventory: &Inventory,
    others: &BTreeMap<&str, Vec<&Recipient>>,
    own: &[&Recipient],
) -> Result<(), NoRoom> {
    const NODE: &str = "this node";
    let mut cluster = Cluster::new();
    let node = Node {
        name: NODE.to_owned(),
        devices: inventory
            .gpus
            .iter()
            .map(|gpu| gpu.device.clone())
            .collect(),
        pairs: Vec::new(),
    };
    cluster.set_node(node)?;
    let mut hold = |uid: &str, recipients: &[&Recipient]| {
        let placement = Placement {
            node: NODE.into(),
            containers: recipients
                .iter()
                .map(|recipient| recipient.granted())
                .collect(),
        };
        cluster.reserve(Pod::named("", uid), placement);
    };
    for (uid, recipients) in others {
        hold(uid, recipients);
    }
    if let Some(first) = own.first() {
        hold(&first.uid, own);
    }
    let Some(node) = cluster.node(NODE) else {
        return Ok(());
    };
    let mine: Vec<Granted> = own.iter().map(|recipient| recipient.granted()).collect();
    for grant in mine.iter().flat_map(|granted| &granted.grants) {
        let Some(view) = node.device(&grant.device) else {
            continue;
        };
        let (used, device) = (view.used(), view.device());
        let excess = if used.memory_bytes > device.memory_bytes && !device.is_mig() {
            format!(
                "{} MiB of {} MiB memory",
                used.memory_bytes >> 20,
                device.memory_bytes >> 20
            )
        } else if used.cores > device.cores && !device.is_mig() {
            format!("{} of {} cores", used.cores, device.cores)
        } else if used.slots > device.slots {
            format!("{} of {} slots", used.slots, device.slots)
        } else if view.is_in_conflict() {
            "instances as well as shares in software".to_owned()
        } else if let Some(instance) = &grant.instance
            && overlaps(instance, &grant.device, others)
        {
            format!(
                "two instances in the same place ({} at slice {})",
                instance.profile, instance.span.start
            )
        } else {
            continue;
        };
        return Err(NoRoom::Full {
            gpu: grant.device.to_string(),
            excess,
            others: holders(&grant.device, others),
        });
    }
    Ok(())
}

fn overlaps(instance: &Instance, gpu: &str, others: &BTreeMap<&str, Vec<&Recipient>>) -> bool {
    let recipients = others.values().flatten();
    recipients
        .flat_map(|recipient| &recipient.shares)
        .filter(|share| share.gpu == gpu)
        .filter_map(|share| share.instance.as_ref())
        .any(|cut| cut.span().overlaps(instance.span))
}

fn holders(gpu: &str, others: &BTreeMap<&str, Vec<&Recipient>>) -> String {
    const MOST_NAMED: usize = 6;
    let mut names: Vec<String> = Vec::new();
    for recipient in others.values().flatten() {
        let name = format!("{}/{}", recipient.namespace, recipient.pod);
        if recipient.shares.iter().any(|share| share.gpu == gpu) && !names.contains(&name) {
            names.push(name);
        }
    }
    listed(&names, MOST_NAMED)
}

#[cfg(test)]
mod tests {
    use placement::Device;

    use super::super::allotments::{Cut, GpuShare};
    use super::*;
    use crate::node_gpus::KnownGpu;

    const MIB: u64 = 1 << 20;

    /// Two GPUs of 1,000 MiB, 100 cores and 3 slots.
    fn inventory(mode: &str) -> Inventory {
        let gpu = |id: &str| KnownGpu {
            device: Device {
                slots: 3,
                mode: mode.to_owned(),
                ..Device::new("NVIDIA", id, "model", 1_000 * MIB)
            },
            physical_bytes: 1_000 * MIB,
            pci_bus_id: String::new(),
            minor: 0,
        };
        Inventory {
            gpus: vec![gpu("g0"), gpu("g1")],
            ..Inventory::default()
        }
    }

    fn share(gpu: &str, mib: u64, cores: u32) -> GpuShare {
        GpuShare {
            gpu: gpu.to_owned(),
            memory_bytes: mib * MIB,
            physical_bytes: 1_000 * MIB,
            cores,
            slots: 1,
            instance: None,
        }
    }

    fn cut(gpu: &str, start: u32) -> GpuShare {
        GpuShare {
            instance: Some(Cut {
                profile: "2g".to_owned(),
                memory_bytes: 250 * MIB,
                cores: 25,
                slices: 2,
                start,
                size: 2,
                made: None,
            }),
            ..share(gpu, 250, 25)
        }
    }

    fn recipient(pod: &str, container: &str, shares: &[GpuShare]) -> Recipient {
        Recipient {
            uid: format!("uid-{pod}"),
            namespace: "ns".to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
            kind: "app".to_owned(),
            vendor: "NVIDIA".to_owned(),
            shares: shares.to_vec(),
            priority: 0,
            policy: String::new(),
            workload: supervisor::instance::Workload::default(),
            traceparent: None,
            told: false,
        }
    }

    /// Whether there is room for one share beside those of other pods, or what there is not enough of.
    fn checked(mode: &str, others: &[GpuShare], own: &GpuShare) -> Result<(), String> {
        let others: Vec<Recipient> = (0..)
            .zip(others)
            .map(|(number, other)| {
                recipient(&format!("p{number}"), "c", std::slice::from_ref(other))
            })
            .collect();
        let others: BTreeMap<&str, Vec<&Recipient>> = others
            .iter()
            .map(|one| (one.uid.as_str(), vec![one]))
            .collect();
        let own = recipient("own", "c", std::slice::from_ref(own));
        match check(&inventory(mode), &others, &[&own]) {
            Err(NoRoom::Full { gpu, excess, .. }) => Err(format!("{gpu}: {excess}")),
            Err(node @ NoRoom::Node(_)) => panic!("{node}"),
            Ok(()) => Ok(()),
        }
    }

    #[test]
    fn gpu_gives_all_that_it_has_and_no_more() {
        let full = |others: &[GpuShare], own| checked("hami-core", others, &own);
        let others = [share("g0", 400, 30), share("g1", 1_000, 100)];
        assert_eq!(full(&others, share("g0", 600, 70)), Ok(()));
        assert_eq!(
            full(&others, share("g0", 601, 70)),
            Err("g0: 1001 MiB of 1000 MiB memory".to_owned())
        );
        assert_eq!(
            full(&others, share("g0", 600, 71)),
            Err("g0: 101 of 100 cores".to_owned())
        );
        let small = || share("g0", 1, 0);
        assert_eq!(full(&[small(), small()], small()), Ok(()));
        assert_eq!(
            full(&[small(), small(), small()], small()),
            Err("g0: 4 of 3 slots".to_owned())
        );
    }

    #[test]
    fn full_neighbour_and_unknown_gpu_take_no_room() {
        let others = [share("g1", 2_000, 0), share("gone", 1, 0)];
        assert_eq!(
            checked("hami-core", &others, &share("g0", 1_000, 100)),
            Ok(())
        );
        assert_eq!(checked("hami-core", &[], &share("gone", 9_000, 0)), Ok(()));
    }

    #[test]
    fn instances_of_a_gpu_do_not_share_a_slice() {
        assert_eq!(checked("mig", &[cut("g0", 0)], &cut("g0", 2)), Ok(()));
        assert_eq!(checked("mig", &[cut("g1", 0)], &cut("g0", 0)), Ok(()));
        for start in [0, 1] {
            let refused = checked("mig", &[cut("g0", 1)], &cut("g0", start));
            let text = format!("g0: two instances in the same place (2g at slice {start})");
            assert_eq!(refused, Err(text));
        }
    }

    #[test]
    fn refusal_names_each_pod_on_the_gpu_once() {
        let held = [
            recipient("a", "one", &[share("g0", 300, 0)]),
            recipient("a", "two", &[share("g0", 300, 0)]),
            recipient("b", "c", &[share("g1", 300, 0)]),
        ];
        let others = BTreeMap::from([
            ("uid-a", vec![&held[0], &held[1]]),
            ("uid-b", vec![&held[2]]),
        ]);
        let own = recipient("own", "c", &[share("g0", 500, 0)]);
        let refused = check(&inventory("hami-core"), &others, &[&own]).unwrap_err();
        let text =
            "GPU g0 would have to give 1100 MiB of 1000 MiB memory; the others there are ns/a";
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn newer_allotment_of_a_container_replaces_the_older_one() {
        let allotment = |order: u64, recipient: Option<Recipient>| Allotment {
            order,
            name: format!("v{order}"),
            resource: "r".to_owned(),
            ids: Vec::new(),
            recipient,
        };
        let allotments = [
            allotment(1, Some(recipient("a", "one", &[share("g0", 1, 0)]))),
            allotment(2, Some(recipient("a", "two", &[share("g0", 2, 0)]))),
            allotment(3, None),
            allotment(4, Some(recipient("a", "one", &[share("g0", 3, 0)]))),
            allotment(5, Some(recipient("b", "one", &[share("g0", 4, 0)]))),
        ];
        let found: Vec<_> = by_pod(&allotments)
            .into_iter()
            .map(|(uid, recipients)| {
                let mib = recipients
                    .iter()
                    .map(|recipient| recipient.shares[0].memory_bytes / MIB);
                (uid.to_owned(), mib.collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(
            found,
            [
                ("uid-a".to_owned(), vec![2, 3]),
                ("uid-b".to_owned(), vec![4])
            ]
        );
    }
}
