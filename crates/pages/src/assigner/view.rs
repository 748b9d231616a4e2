//! The contents of the assigner's pages, as values that a template only has to print. Values in, values out.

use super::{Assignment, DeviceRow, DeviceState, Happening, Inventory};
use crate::text;
use crate::view::Slice;
use crate::view::address::segment;
use crate::view::query::{Filter, Query, Select, has_all};

/// The number of devices on a page of the list.
const ROWS: usize = 50;

/// The prefix that all labels have.
const PREFIX: &str = "fudo.org/";

/// The address of the live part of the list.
pub(super) const PART: &str = "/page/part/devices";

const STATES: [DeviceState; 6] = [
    DeviceState::Available,
    DeviceState::Pending,
    DeviceState::Assigned,
    DeviceState::Expired,
    DeviceState::Shared,
    DeviceState::Out,
];

/// The devices that match a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceList {
    /// The form above them.
    pub filter: Filter,
    /// The number of devices in each state that occurs.
    pub counts: Vec<(&'static str, usize)>,
    /// The rows of this page.
    pub rows: Vec<DeviceLine>,
    /// The position of this page among all pages.
    pub slice: Slice,
    /// The address of this list, with its query.
    pub part: String,
    /// The number of devices without the filter.
    pub all: usize,
    /// Whether all nodes, pods and Leases have been read.
    pub synced: bool,
    /// The reports that cannot be read, each with its node.
    pub problems: Vec<(String, String)>,
}

/// A device in the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceLine {
    /// Its UUID.
    pub uuid: String,
    /// The address of its page.
    pub href: String,
    /// Its labels, without the prefix.
    pub labels: Vec<String>,
    /// Its node.
    pub node: String,
    /// Model and memory; empty if unknown.
    pub model: String,
    /// The pod that has it; `-` for none.
    pub assignment: String,
    /// The word for its state.
    pub state: &'static str,
    /// The class of that word in the style sheet.
    pub class: &'static str,
}

/// A device's page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceDetail {
    /// The device.
    pub line: DeviceLine,
    /// An explanation of the state.
    pub meaning: String,
    /// Facts about it, as pairs of name and value.
    pub facts: Vec<(&'static str, String)>,
    /// Its history, the newest entry first.
    pub history: Vec<HistoryEntry>,
    /// The address of the live part.
    pub part: String,
}

/// An entry of a device's history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The time, for a machine.
    pub datetime: String,
    /// The time, for a reader.
    pub when: String,
    /// The event.
    pub what: &'static str,
    /// The class of that word in the style sheet.
    pub class: &'static str,
    /// The pod; empty if it was not known.
    pub pod: String,
    /// The reservation; empty if there was none.
    pub reservation: String,
}

/// The address of a device's page.
pub fn address(uuid: &str) -> String {
    format!("/page/devices/{}", segment(uuid))
}

/// The devices that match the query. `show` is the word of a state. `sort` is `state` or `newest` (the latest
/// assignment first); otherwise the order is by node.
pub fn device_list(inventory: &Inventory, query: &Query) -> DeviceList {
    let words = query.words();
    let mut rows: Vec<&DeviceRow> = inventory
        .devices
        .iter()
        .filter(|device| query.show.is_empty() || device.state.word() == query.show)
        .filter(|device| takes(device, &words))
        .collect();
    match query.sort.as_str() {
        "state" => rows.sort_by_key(|device| device.state),
        "newest" => rows.sort_by_key(|device| {
            let since = device.assignment.as_ref().map(|held| held.since_unix_ms);
            std::cmp::Reverse(since)
        }),
        _ => {}
    }
    let slice = query.slice("/", rows.len(), ROWS);
    let shown = rows.iter().skip(slice.skipped()).take(slice.len());
    let count = |state: DeviceState| {
        let devices = inventory.devices.iter();
        let number = devices.filter(|device| device.state == state).count();
        (state.word(), number)
    };
    let mut options = vec![("", "all devices")];
    options.extend(STATES.map(|state| (state.word(), state.word())));
    DeviceList {
        rows: shown.map(|device| line(device)).collect(),
        counts: STATES
            .map(count)
            .into_iter()
            .filter(|(_, number)| *number > 0)
            .collect(),
        part: query.at(PART, slice.page),
        slice,
        all: inventory.devices.len(),
        synced: inventory.synced,
        problems: inventory
            .problems
            .iter()
            .map(|problem| (problem.node.clone(), problem.problem.clone()))
            .collect(),
        filter: Filter {
            label: "Devices",
            path: "/".to_owned(),
            part: PART.to_owned(),
            target: "#devices",
            text: query.text.clone(),
            placeholder: "UUID, label, node, model or pod",
            selects: vec![
                Select::of("Show", "show", &query.show, &options),
                Select::of(
                    "Order",
                    "sort",
                    &query.sort,
                    &[
                        ("", "by node"),
                        ("state", "by status"),
                        ("newest", "newest assignment first"),
                    ],
                ),
            ],
        },
    }
}

fn takes(device: &DeviceRow, words: &[String]) -> bool {
    if words.is_empty() {
        return true;
    }
    let mut texts: Vec<&str> = vec![&device.uuid, &device.node, &device.model];
    texts.extend(device.labels.iter().map(String::as_str));
    if let Some(held) = &device.assignment {
        texts.push(&held.namespace);
        texts.extend(held.name.as_deref());
        texts.extend(held.uid.as_deref());
        texts.push(&held.reservation_id);
    }
    has_all(words, &texts)
}

/// `namespace/name`, or the uid if the name is not known; `-` if no pod has the device.
fn assignment(held: Option<&Assignment>) -> String {
    let Some(held) = held else {
        return "-".to_owned();
    };
    let pod = held.name.as_deref().or(held.uid.as_deref());
    match pod {
        Some(pod) => format!("{}/{pod}", held.namespace),
        // A proposal whose pod has not been seen has neither.
        None => format!("{}/(not seen yet)", held.namespace),
    }
}

fn class(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Available => "state-available",
        DeviceState::Assigned => "state-placed",
        DeviceState::Pending | DeviceState::Expired | DeviceState::Out => "state-pending",
        DeviceState::Shared => "",
    }
}

fn line(device: &DeviceRow) -> DeviceLine {
    let model = text::model(&device.model);
    DeviceLine {
        uuid: device.uuid.clone(),
        href: address(&device.uuid),
        labels: device
            .labels
            .iter()
            .map(|label| label.strip_prefix(PREFIX).unwrap_or(label).to_owned())
            .collect(),
        node: device.node.clone(),
        model: if device.memory_bytes == 0 {
            model.to_owned()
        } else {
            format!("{model}, {}", text::bytes(device.memory_bytes))
        },
        assignment: assignment(device.assignment.as_ref()),
        state: device.state.word(),
        class: class(device.state),
    }
}

fn meaning(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Available => "A pod that asks for its labels may get it.",
        DeviceState::Pending => {
            "It is proposed to a pod, for 60 seconds: the reservation becomes active when it is finalized."
        }
        DeviceState::Assigned => "A pod has it.",
        DeviceState::Expired => "Its reservation expired and is about to be removed.",
        DeviceState::Shared => {
            "Pods that asked for a share of a GPU are on it; a pod that asks by label cannot get it."
        }
        DeviceState::Out => "Its agent reports it as unhealthy, or an operator has cordoned it.",
    }
}

/// A device's page; `None` if the device does not exist.
pub fn device_detail(
    inventory: &Inventory,
    uuid: &str,
    history: &[Happening],
) -> Option<DeviceDetail> {
    let device = inventory
        .devices
        .iter()
        .find(|device| device.uuid == uuid)?;
    let mut facts = Vec::new();
    if device.sharers > 0 {
        facts.push(("Containers that share it", device.sharers.to_string()));
    }
    if let Some(held) = &device.assignment {
        facts.push(("Pod", assignment(Some(held))));
        let seen = match (held.exists, held.active) {
            (true, _) => "is in the cluster",
            (false, true) => "is gone",
            (false, false) => "has not been seen yet",
        };
        facts.push(("The pod", seen.to_owned()));
        facts.push(("Reservation", held.reservation_id.clone()));
        let state = if held.active { "active" } else { "proposal" };
        facts.push(("State of the reservation", state.to_owned()));
        facts.push(("Since", moment(held.since_unix_ms).1));
    }
    Some(DeviceDetail {
        line: line(device),
        meaning: meaning(device.state).to_owned(),
        facts,
        history: history.iter().map(entry).collect(),
        part: format!("{PART}/{}", segment(uuid)),
    })
}

fn entry(happening: &Happening) -> HistoryEntry {
    let (datetime, when) = moment(happening.at_unix_ms);
    let pod = match (&*happening.namespace, &*happening.pod) {
        ("", "") => String::new(),
        (namespace, "") => format!("a pod of {namespace}"),
        (namespace, pod) => format!("{namespace}/{pod}"),
    };
    let class = match happening.what {
        super::Happened::Proposed | super::Happened::Expired => "state-pending",
        super::Happened::Finalized => "state-placed",
        super::Happened::Released => "state-available",
    };
    HistoryEntry {
        datetime,
        when,
        what: happening.what.word(),
        class,
        pod,
        reservation: happening.reservation_id.clone(),
    }
}

/// A time in UTC, for a machine and for a reader.
fn moment(unix_ms: i64) -> (String, String) {
    match jiff::Timestamp::from_millisecond(unix_ms) {
        Ok(at) => (
            at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        ),
        Err(_) => (String::new(), "not known".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Happened;
    use super::*;

    fn device(uuid: &str, node: &str, state: DeviceState) -> DeviceRow {
        DeviceRow {
            uuid: uuid.into(),
            node: node.into(),
            labels: vec!["fudo.org/gpu.a100".into(), "fudo.org/gpu.large".into()],
            model: "NVIDIA A100-PCIE-40GB".into(),
            memory_bytes: 40 << 30,
            sharers: 0,
            state,
            assignment: None,
        }
    }

    fn held(name: Option<&str>, uid: Option<&str>, since: i64) -> Assignment {
        Assignment {
            namespace: "ml".into(),
            name: name.map(str::to_owned),
            uid: uid.map(str::to_owned),
            exists: name.is_some(),
            reservation_id: "r-1".into(),
            active: uid.is_some(),
            since_unix_ms: since,
        }
    }

    fn inventory() -> Inventory {
        let mut devices = vec![
            device("GPU-a", "n1", DeviceState::Assigned),
            device("GPU-b", "n1", DeviceState::Pending),
            device("GPU-c", "n2", DeviceState::Available),
        ];
        devices[0].assignment = Some(held(Some("train"), Some("u-1"), 1_000));
        devices[1].assignment = Some(held(None, None, 2_000));
        Inventory {
            version: 1,
            synced: true,
            devices,
            problems: Vec::new(),
        }
    }

    fn names(text: &str, show: &str, sort: &str) -> Vec<String> {
        let query = Query {
            text: text.into(),
            show: show.into(),
            sort: sort.into(),
            page: 1,
        };
        let list = device_list(&inventory(), &query);
        list.rows.into_iter().map(|row| row.uuid).collect()
    }

    #[test]
    fn a_row_says_labels_assignment_and_state() {
        let list = device_list(&inventory(), &Query::default());

        assert_eq!(list.rows[0].labels, ["gpu.a100", "gpu.large"]);
        assert_eq!(list.rows[0].assignment, "ml/train");
        assert_eq!(list.rows[1].assignment, "ml/(not seen yet)");
        assert_eq!(list.rows[2].assignment, "-");
        assert_eq!(list.rows[2].model, "A100-PCIE-40GB, 40 GiB");
        assert_eq!(
            list.counts,
            [("available", 1), ("pending", 1), ("assigned", 1)]
        );
    }

    #[test]
    fn a_pod_without_a_name_is_called_by_its_uid() {
        assert_eq!(assignment(Some(&held(None, Some("u-7"), 0))), "ml/u-7");
    }

    #[test]
    fn choices_words_and_orders_hold() {
        assert_eq!(names("train", "", ""), ["GPU-a"]);
        assert_eq!(names("A100 n2", "", ""), ["GPU-c"]);
        assert_eq!(names("", "pending", ""), ["GPU-b"]);
        assert_eq!(names("", "", "state"), ["GPU-c", "GPU-b", "GPU-a"]);
        assert_eq!(names("", "", "newest"), ["GPU-b", "GPU-a", "GPU-c"]);
    }

    #[test]
    fn device_page_shows_its_history() {
        let happening = Happening {
            at_unix_ms: 1_790_000_000_123,
            what: Happened::Finalized,
            namespace: "ml".into(),
            pod: "train".into(),
            reservation_id: "r-1".into(),
        };

        let page = device_detail(&inventory(), "GPU-a", &[happening]).unwrap();

        assert_eq!(page.history[0].when, "2026-09-21 14:13:20 UTC");
        assert_eq!(
            (page.history[0].what, &*page.history[0].pod),
            ("finalized", "ml/train")
        );
        assert!(
            page.facts
                .contains(&("State of the reservation", "active".into()))
        );
        assert_eq!(device_detail(&inventory(), "GPU-x", &[]), None);
    }

    #[test]
    fn a_time_that_is_none_does_no_harm() {
        assert_eq!(moment(i64::MAX).1, "not known");
    }
}
