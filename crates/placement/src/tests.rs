//! What the engine promises, in examples.

use crate::*;

const GIB: u64 = 1 << 30;

pub(crate) fn node(name: &str, cards: &[u64]) -> Node {
    Node {
        name: name.to_owned(),
        devices: cards
            .iter()
            .enumerate()
            .map(|(index, gib)| Device {
                index: u32::try_from(index).unwrap(),
                ..Device::new("NVIDIA", &format!("GPU-{index}"), "NVIDIA A100", gib * GIB)
            })
            .collect(),
        pairs: Vec::new(),
    }
}

fn cluster(nodes: &[Node]) -> Cluster {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.set_node(node.clone()).unwrap();
    }
    cluster
}

pub(crate) fn asking(name: &str, asks: &[Ask]) -> Request {
    Request {
        pod: Pod::named("default", name),
        containers: vec![Container {
            name: "main".to_owned(),
            kind: Kind::App,
            asks: asks.to_vec(),
        }],
        node_policy: NodePolicy::Binpack,
    }
}

pub(crate) fn gib(count: u32, gib: u64) -> Ask {
    Ask::new("NVIDIA", count, Memory::Bytes(gib * GIB))
}

/// `node:card,card;card` for each container's cards.
fn text(placement: &Placement) -> String {
    let containers: Vec<String> = placement
        .containers
        .iter()
        .map(|granted| {
            let cards: Vec<&str> = granted
                .grants
                .iter()
                .map(|grant| grant.device.strip_prefix("GPU-").unwrap_or(&grant.device))
                .collect();
            cards.join(",")
        })
        .collect();
    format!("{}:{}", placement.node, containers.join(";"))
}

fn place(cluster: &mut Cluster, request: &Request) -> String {
    match cluster.place(request, Among::All) {
        Ok(placement) => {
            let text = text(&placement);
            cluster.reserve(request.pod.clone(), placement);
            text
        }
        Err(misfits) => misfits
            .iter()
            .map(|misfit| format!("{}: {}", misfit.node, misfit.misfit.summary()))
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

#[test]
fn a_pod_gets_a_card_with_room_and_a_reservation_takes_it() {
    let mut cluster = cluster(&[node("n1", &[80, 80])]);

    assert_eq!(place(&mut cluster, &asking("a", &[gib(1, 50)])), "n1:1");
    assert_eq!(place(&mut cluster, &asking("b", &[gib(1, 50)])), "n1:0");
    assert_eq!(
        place(&mut cluster, &asking("c", &[gib(1, 50)])),
        "n1: 2/2 CardInsufficientMemory"
    );
}

#[test]
fn what_is_released_can_be_taken_again() {
    let mut cluster = cluster(&[node("n1", &[80])]);
    place(&mut cluster, &asking("a", &[gib(1, 50)]));

    let released = cluster.release("default/a").unwrap();

    assert_eq!(released.load().memory_bytes, 50 * GIB);
    assert_eq!(place(&mut cluster, &asking("b", &[gib(1, 80)])), "n1:0");
}

#[test]
fn a_pods_own_reservation_does_not_stand_in_its_way() {
    let mut cluster = cluster(&[node("n1", &[80])]);
    place(&mut cluster, &asking("a", &[gib(1, 50)]));

    assert_eq!(place(&mut cluster, &asking("a", &[gib(1, 60)])), "n1:0");
    let used = cluster.node("n1").unwrap().devices().next().unwrap().used();
    assert_eq!(used.memory_bytes, 60 * GIB);
}
