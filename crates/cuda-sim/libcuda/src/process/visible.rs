//! Which GPUs a process sees: of those that it was given, `CUDA_VISIBLE_DEVICES`, read as the real driver reads it. Of a
//! GPU in MIG mode the process sees one instance. `CUDA_VISIBLE_DEVICES` names the instance; without that variable it is
//! the first one whose device nodes the process can open.
//! Decides with values; the environment is read in one place.

use cuda_sim::Board;
use cuda_sim::mig::Instance;
use cuda_sim::nodes::Nodes;

/// The GPUs that a process sees.
pub(crate) struct Visible {
    /// GPUs of the board, in the process's order.
    pub(crate) gpus: Vec<usize>,
    /// The one MIG device that it works on: then its GPU is the only one.
    pub(crate) instance: Option<Instance>,
}

/// The GPUs of the board that this process sees among those that it was given.
#[must_use]
pub(crate) fn devices(board: &Board, nodes: &Nodes) -> Visible {
    let given = &nodes.gpus;
    let whole = |gpus| Visible {
        gpus,
        instance: None,
    };
    let Ok(list) = std::env::var("CUDA_VISIBLE_DEVICES") else {
        if let Some((gpu, instance)) = first_instance(board, nodes) {
            return Visible {
                gpus: vec![gpu],
                instance: Some(instance),
            };
        }
        // All simulated GPUs are equally fast and in bus order, so CUDA_DEVICE_ORDER changes nothing.
        return whole(given.clone());
    };
    // A process works on one MIG device at most: the first that is named, if that comes first.
    let first = list.split(',').next().unwrap_or_default().trim();
    let named = board.instance_named(first);
    if let Some((gpu, instance)) = named.filter(|(gpu, it)| nodes.opens(*gpu, it.index)) {
        return Visible {
            gpus: vec![gpu],
            instance: Some(instance),
        };
    }
    let uuids: Vec<String> = given.iter().map(|&gpu| board.uuid(gpu)).collect();
    let chosen = chosen(&list, &uuids).into_iter();
    whole(
        chosen
            .filter_map(|place| given.get(place).copied())
            .collect(),
    )
}

/// The first MIG instance whose two device nodes this process can open, and its GPU.
fn first_instance(board: &Board, nodes: &Nodes) -> Option<(usize, Instance)> {
    let gpus = nodes.gpus.iter().filter(|_| nodes.keep_instances_apart());
    let mut all = gpus.flat_map(|&gpu| {
        let instances = board.instances(gpu).into_iter();
        instances.map(move |instance| (gpu, instance))
    });
    all.find(|(gpu, instance)| nodes.opens(*gpu, instance.index))
}

/// The list ends at the first entry that names nothing; a GPU named twice makes it empty.
fn chosen(list: &str, uuids: &[String]) -> Vec<usize> {
    let mut devices = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let Some(gpu) = named(entry, uuids) else {
            break;
        };
        if devices.contains(&gpu) {
            return Vec::new();
        }
        devices.push(gpu);
    }
    devices
}

/// A GPU by its index, its UUID, an unambiguous beginning of that, or a MIG instance of it
/// (`MIG-GPU-<uuid>/<gi>/<ci>`).
fn named(entry: &str, uuids: &[String]) -> Option<usize> {
    if let Ok(index) = entry.parse::<usize>() {
        return (index < uuids.len()).then_some(index);
    }
    let uuid = match entry.strip_prefix("MIG-") {
        Some(instance) => instance.split('/').next()?,
        None => entry,
    };
    if uuid.len() <= "GPU-".len() {
        return None;
    }
    let mut fitting = (0..uuids.len()).filter(|&gpu| {
        uuids[gpu]
            .get(..uuid.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(uuid))
    });
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen_of(list: &str) -> Vec<usize> {
        let uuids = ["GPU-aa11", "GPU-aa22", "GPU-bb33"].map(str::to_owned);
        chosen(list, &uuids)
    }

    #[test]
    fn devices_are_named_by_index_uuid_and_unambiguous_beginning() {
        assert_eq!(chosen_of("2,0"), [2, 0]);
        assert_eq!(chosen_of("GPU-bb33, GPU-aa2"), [2, 1]);
        assert_eq!(chosen_of("MIG-GPU-bb33/1/0"), [2]);
    }

    #[test]
    fn the_list_ends_at_the_first_name_of_nothing() {
        assert_eq!(chosen_of("1,-1,0"), [1]);
        assert_eq!(chosen_of("0,GPU-aa,1"), [0]);
        assert_eq!(chosen_of(""), [0; 0]);
        assert_eq!(chosen_of("3"), [0; 0]);
    }

    #[test]
    fn a_device_named_twice_hides_them_all() {
        assert_eq!(chosen_of("0,1,0"), [0; 0]);
    }
}
