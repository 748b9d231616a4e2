//! The table of `vgpu top --waits`: how long launches waited at the gate, and for what, for each container and GPU.

use supervisor::view::DeviceView;
use vgpu_abi::waits::{WAIT_BOUNDS_NS, WaitCause};

use super::{Picture, full_name, gpu_text, heads};
use crate::text::{Paint, Table, number, span};

/// The columns before those of lengths.
const FIRST: [&str; 3] = ["WAITS OF", "GPU", "ENDED"];

/// The table.
pub(super) fn draw(picture: &Picture, paint: Paint, columns: Option<usize>, out: &mut String) {
    let mut table = Table::default();
    let names = names();
    let head: Vec<&str> = names.iter().map(String::as_str).collect();
    table.row(heads(&head, paint));
    for container in &picture.views.containers {
        for (row, device) in container.devices.iter().enumerate() {
            let name = match row {
                0 => paint.bold(&full_name(container)),
                _ => String::new(),
            };
            let gpu = gpu_text(picture, device);
            table.row([name, gpu].into_iter().chain(cells(device)).collect());
        }
    }
    if let Some(columns) = columns {
        // The causes are in the metrics, too; the lengths stay.
        let causes = names.len() - WaitCause::ALL.len()..names.len();
        table.fit(columns, &causes.rev().collect::<Vec<_>>());
    }
    table.write(out);
}

fn names() -> Vec<String> {
    let bounds = WAIT_BOUNDS_NS.iter().map(|ns| format!("<={}", bound(*ns)));
    let longer = WAIT_BOUNDS_NS.last().map(|ns| format!(">{}", bound(*ns)));
    let causes = WaitCause::ALL.map(|cause| cause.name().to_uppercase().replace('_', " "));
    let first = FIRST.map(String::from).into_iter();
    first.chain(bounds).chain(longer).chain(causes).collect()
}

/// A bound of a length in its largest unit: each is a whole number of one.
fn bound(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let unit = UNITS.into_iter().find(|(unit, _)| ns.is_multiple_of(*unit));
    unit.map_or_else(
        || format!("{ns}ns"),
        |(unit, name)| format!("{}{name}", ns / unit),
    )
}

/// How many waits have ended, how many of each length, and the time by cause.
fn cells(device: &DeviceView) -> impl Iterator<Item = String> {
    let waits = device.waits;
    let ended = std::iter::once(waits.count());
    let lengths = ended.chain(waits.by_length).map(number);
    lengths.chain(waits.ns_by_cause.map(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_name_each_length_and_each_cause() {
        assert_eq!(
            names().join("  "),
            "WAITS OF  GPU  ENDED  <=100us  <=1ms  <=10ms  <=100ms  <=1s  <=10s  >10s  CAP  GRANT  IN FLIGHT  UNKNOWN COST"
        );
    }
}
