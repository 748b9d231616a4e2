//! kube-scheduler's message about a pod that fits nowhere, split into its reasons, each with its number of nodes and a
//! remedy.

/// One reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The number of nodes that have it; `None` if the message does not say.
    pub nodes: Option<u64>,
    /// The reason in the scheduler's words.
    pub text: String,
    /// The remedy; empty if none is known.
    pub hint: String,
}

/// A message in its parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The number of nodes in all; `None` if the message does not say.
    pub nodes: Option<u64>,
    /// The reasons, in the order of the message.
    pub refusals: Vec<Refusal>,
    /// The result of preemption; empty if the message does not mention it.
    pub preemption: String,
}

/// Splits `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable. preemption: …` into its parts.
/// A message of another form counts as one reason.
pub fn read(text: &str) -> Message {
    let text = text.trim();
    if text.is_empty() {
        return Message::default();
    }
    let (head, preemption) = match text.split_once(" preemption: ") {
        Some((head, preemption)) => (head, preemption.trim_end_matches('.')),
        None => (text, ""),
    };
    let parsed = head
        .split_once(" nodes are available: ")
        .and_then(|(count, reasons)| {
            let (_, all) = count.rsplit_once('/')?;
            Some((all.parse().ok()?, reasons))
        });
    let Some((all, reasons)) = parsed else {
        return Message {
            nodes: None,
            refusals: vec![refusal(None, text)],
            preemption: String::new(),
        };
    };
    let refusals = counted(reasons.trim_end().trim_end_matches('.'));
    Message {
        nodes: Some(all),
        refusals,
        preemption: outcome(preemption),
    }
}

/// The result of preemption, as a sentence.
fn outcome(preemption: &str) -> String {
    if preemption.contains("Preemption is not helpful") {
        "Removing pods of lower priority would not help.".to_owned()
    } else if preemption.contains("No preemption victims found") {
        "No pod of lower priority is there whose removal would make room.".to_owned()
    } else if preemption.is_empty() {
        String::new()
    } else {
        format!("Preemption: {preemption}.")
    }
}

/// `1 a, b, 2 c` is two reasons: a comma followed by a number and a space begins the next one.
fn counted(reasons: &str) -> Vec<Refusal> {
    let mut found: Vec<(Option<u64>, String)> = Vec::new();
    for piece in reasons.split(", ") {
        let number = piece
            .split_once(' ')
            .and_then(|(number, rest)| Some((number.parse::<u64>().ok()?, rest)));
        match (number, found.last_mut()) {
            (Some((nodes, rest)), _) => found.push((Some(nodes), rest.to_owned())),
            (None, Some((_, before))) => {
                before.push_str(", ");
                before.push_str(piece);
            }
            (None, None) => found.push((None, piece.to_owned())),
        }
    }
    let mut refusals: Vec<Refusal> = found
        .into_iter()
        .map(|(nodes, text)| refusal(nodes, &text))
        .collect();
    refusals.sort_by_key(|refusal| std::cmp::Reverse(refusal.nodes));
    refusals
}

fn refusal(nodes: Option<u64>, text: &str) -> Refusal {
    Refusal {
        nodes,
        text: text.to_owned(),
        hint: hint(text),
    }
}

/// The placement engine's codes for a GPU that does not fit, with their explanations.
const ENGINE_CODES: [(&str, &str); 11] = [
    (
        "CardInsufficientMemory",
        "Too little memory is free on these GPUs.",
    ),
    (
        "CardInsufficientCore",
        "Too little compute is free on these GPUs.",
    ),
    (
        "CardComputeUnitsExhausted",
        "All compute of these GPUs is promised.",
    ),
    (
        "CardTimeSlicingExhausted",
        "These GPUs are shared by the most pods that they allow.",
    ),
    (
        "CardTypeMismatch",
        "The pod's rules leave out GPUs of this model or mode.",
    ),
    ("CardUuidMismatch", "The pod's rules leave out these GPUs."),
    (
        "CardNotHealth",
        "These GPUs are sick, or used in another mode.",
    ),
    (
        "CardCordoned",
        "An operator closed these GPUs for new pods.",
    ),
    (
        "CardGivenOut",
        "Another driver gave these GPUs to pods, by a ResourceClaim.",
    ),
    (
        "CardMigTopologyInfeasible",
        "No MIG profile that is large enough has a free place.",
    ),
    (
        "CardQosPolicyMismatch",
        "These GPUs hold pods of another class of service.",
    ),
];

/// The explanation of the placement engine's code.
pub fn of_engine(code: &str) -> Option<&'static str> {
    if code == "NodeInsufficientDevice" {
        return Some("No node has as many suitable GPUs as the pod asks for.");
    }
    let found = ENGINE_CODES.iter().find(|(known, _)| *known == code);
    found.map(|(_, hint)| *hint)
}

/// The remedy for a reason of one of kube-scheduler's plugins.
pub fn hint(reason: &str) -> String {
    if let Some(resource) = reason.strip_prefix("Insufficient ") {
        return format!(
            "Request less {resource}, remove a pod that holds it, or add a node that has it."
        );
    }
    if reason.starts_with("node(s) had untolerated taint") {
        let taint = reason
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map_or(String::new(), |(taint, _)| {
                format!(" {}", taint.trim_end_matches(": "))
            });
        return format!(
            "Give the pod a toleration for the taint{taint}, or remove the taint from a node."
        );
    }
    // The engine's codes for GPUs: `2/2 CardInsufficientMemory` means two of the two GPUs of each node.
    if let Some(code) = reason.split(' ').nth(1)
        && let Some(hint) = of_engine(code)
    {
        return hint.to_owned();
    }
    let hints = [
        (
            "node unregistered",
            "These nodes report no GPUs that pods can share (annotation hami.io/node-nvidia-register).",
        ),
        (
            "node(s) were unschedulable",
            "Open a node again: set its spec.unschedulable to false.",
        ),
        (
            "Too many pods",
            "Add a node, or raise the number of pods that a node allows (status.allocatable.pods).",
        ),
        (
            "node(s) didn't match Pod's node affinity/selector",
            "Change the pod's nodeSelector or node affinity, or label a node so that it matches.",
        ),
        (
            "node(s) didn't match the requested node name",
            "Remove the node name from the pod, or create a node of that name.",
        ),
        (
            "node(s) didn't match pod affinity rules",
            "Place the pod that it wants to be near first, or relax the pod affinity.",
        ),
        (
            "node(s) didn't match pod anti-affinity rules",
            "Add a node in another topology domain, or relax the pod anti-affinity.",
        ),
        (
            "node(s) didn't satisfy existing pods anti-affinity rules",
            "Add a node away from the pods that refuse this one, or relax their anti-affinity.",
        ),
        (
            "node(s) didn't match pod topology spread constraints",
            "Raise maxSkew, or add a node in the domain with the fewest pods.",
        ),
        (
            "node(s) didn't have free ports",
            "Choose another host port, or add a node where it is free.",
        ),
        (
            "node(s) had volume node affinity conflict",
            "Add a node that can reach the volume, or use a volume that more nodes reach.",
        ),
        (
            "pod has unbound immediate PersistentVolumeClaims",
            "Create a persistent volume that the claim can bind to.",
        ),
        (
            "node(s) didn't find available persistent volumes to bind",
            "Create a persistent volume that fits the claim.",
        ),
    ];
    hints
        .iter()
        .find(|(begin, _)| reason.starts_with(begin))
        .map_or_else(String::new, |(_, hint)| (*hint).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_sentence_is_taken_apart() {
        let message = read(
            "0/3 nodes are available: 1 node(s) had untolerated taint {x: y}, 2 node(s) had untolerated taint {node.kubernetes.io/not-ready: }. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        );

        assert_eq!(message.nodes, Some(3));
        assert_eq!(message.refusals.len(), 2);
        assert_eq!(message.refusals[0].nodes, Some(2));
        assert_eq!(
            message.refusals[0].hint,
            "Give the pod a toleration for the taint node.kubernetes.io/not-ready, or remove the taint from a node."
        );
        assert_eq!(
            message.refusals[1].text,
            "node(s) had untolerated taint {x: y}"
        );
        assert_eq!(
            message.preemption,
            "Removing pods of lower priority would not help."
        );
    }

    #[test]
    fn a_comma_inside_a_reason_does_not_end_it() {
        let message = read("0/2 nodes are available: 2 no GPU, of 4, is free.");

        assert_eq!(message.refusals.len(), 1);
        assert_eq!(message.refusals[0].text, "no GPU, of 4, is free");
    }

    #[test]
    fn a_sentence_of_another_form_is_one_reason() {
        let message = read("no nodes available to schedule pods");

        assert_eq!(message.nodes, None);
        assert_eq!(
            message.refusals[0].text,
            "no nodes available to schedule pods"
        );
        assert_eq!(read(""), Message::default());
    }

    #[test]
    fn a_hint_names_the_resource() {
        assert_eq!(
            hint("Insufficient nvidia.com/gpu"),
            "Request less nvidia.com/gpu, remove a pod that holds it, or add a node that has it."
        );
        assert_eq!(
            hint("2/2 CardInsufficientMemory"),
            "Too little memory is free on these GPUs."
        );
        assert_eq!(
            hint("2/2 CardInsufficientMemory (too little memory is free)"),
            "Too little memory is free on these GPUs."
        );
        assert_eq!(hint("something new"), "");
    }
}
