//! The table of `vgpu top`, as text.

use std::fmt::Write;

use supervisor::view::{ContainerView, DeviceView, ProcessView};
use vgpu_abi::host::ComputeSnapshot;
use vgpu_abi::size::Size;

use super::{Picture, full_name, gpu_text, heads, state, waits};
use crate::text::{
    Paint, Table, asked_text, bar, number, percent, percent_text, permille_text, span, used_of, utc,
};

const BAR: usize = 16;
/// The width of a bar in a row with many columns.
const SHORT_BAR: usize = 10;

/// The table for a terminal of this width, as wide as needed if there is no width; with a second table of waits if it is
/// asked for.
pub(super) fn draw(
    picture: &Picture,
    paint: Paint,
    columns: Option<usize>,
    with_waits: bool,
) -> String {
    let mut out = String::new();
    let containers = &picture.views.containers;
    let processes: usize = containers.iter().map(|c| c.processes.len()).sum();
    writeln!(
        out,
        "{}  {}, {}, {}",
        paint.bold("vgpu top"),
        utc(picture.time_unix),
        count(containers.len(), "container"),
        count_es(processes, "process"),
    )
    .ok();
    writeln!(out).ok();
    draw_gpus(picture, paint, columns, &mut out);
    writeln!(out).ok();
    draw_containers(picture, paint, columns, &mut out);
    if with_waits && !containers.is_empty() {
        writeln!(out).ok();
        waits::draw(picture, paint, columns, &mut out);
    }
    draw_notes(picture, paint, &mut out);
    out
}

fn draw_gpus(picture: &Picture, paint: Paint, columns: Option<usize>, out: &mut String) {
    if let Some(error) = &picture.gpu_error {
        writeln!(
            out,
            "{}",
            paint.yellow(&format!("GPUs are not shown: {error}"))
        )
        .ok();
        return;
    }
    let mut table = Table::default();
    table.row(heads(
        &[
            "GPU", "MODEL", "MEMORY", "", "", "LIMITS", "COMPUTE", "FLOORS",
        ],
        paint,
    ));
    for gpu in &picture.inventory.gpus {
        let limits = picture.views.limits_bytes(&gpu.uuid);
        let limits_text = Size(limits).to_string();
        table.row(vec![
            gpu.index.to_string(),
            gpu.name.clone(),
            used_of(gpu.used_bytes, gpu.memory_bytes),
            share(gpu.used_bytes, gpu.memory_bytes),
            bar(gpu.used_bytes, gpu.memory_bytes, BAR, paint),
            if limits > gpu.memory_bytes {
                paint.yellow(&limits_text)
            } else {
                limits_text
            },
            percent_text(gpu.utilization_percent),
            format!("{}%", picture.floors_percent(&gpu.uuid)),
        ]);
    }
    if let Some(columns) = columns {
        table.fit(columns, &[4, 3]);
    }
    table.write(out);
}

const COLUMNS: [&str; 15] = [
    "CONTAINER",
    "PRIO",
    "GPU",
    "MEMORY",
    "",
    "",
    "USED",
    "GRANTED",
    "ASKED",
    "WAITING",
    "THROTTLED",
    "LAUNCHES",
    "LAST",
    "OOMS",
    "STATE",
];

/// Columns that a narrow terminal does without, the least first: the memory's bar and percentage,
/// launches, the last one, the priority, the throttled time, what was granted, and the waiting share.
const EXPENDABLE: [usize; 8] = [5, 11, 4, 12, 1, 10, 7, 9];

fn draw_containers(picture: &Picture, paint: Paint, columns: Option<usize>, out: &mut String) {
    let containers = &picture.views.containers;
    if containers.is_empty() {
        writeln!(
            out,
            "No containers. Start one: vgpu run --gpumem 4Gi -- COMMAND"
        )
        .ok();
        return;
    }
    let mut table = Table::default();
    table.row(heads(&COLUMNS, paint));
    for container in containers {
        container_rows(picture, container, paint, &mut table);
    }
    if let Some(columns) = columns {
        table.fit(columns, &EXPENDABLE);
    }
    table.write(out);
}

fn container_rows(picture: &Picture, container: &ContainerView, paint: Paint, table: &mut Table) {
    for (row, device) in container.devices.iter().enumerate() {
        let first = |text: String| if row == 0 { text } else { String::new() };
        let seen = picture.seen(container, device);
        let word = if device.pending_shrink {
            "pending-shrink"
        } else if seen.waits_for_turn {
            "waits for turn"
        } else if seen.granted_permille == Some(0) && device.compute.waiting_since_ns != 0 {
            "waits"
        } else {
            state(container)
        };
        let ooms = match container.oom_count {
            0 => String::from("0"),
            count => paint.red(&count.to_string()),
        };
        let throttled = span(picture.throttled_ns(&device.compute));
        let is_throttled = seen.throttled_permille > 0 || device.compute.waiting_since_ns != 0;
        let warn = |text: String| {
            if is_throttled {
                paint.yellow(&text)
            } else {
                text
            }
        };
        // Without an arbiter no process knows how much of the last second it was.
        let waiting = match seen.granted_permille {
            Some(_) => permille_text(u32::from(seen.throttled_permille)),
            None => unknown(),
        };
        table.row(vec![
            first(paint.bold(&full_name(container))),
            first(container.priority.to_string()),
            gpu_text(picture, device),
            memory_text(device),
            share(device.used_bytes, device.limit_bytes),
            bar(device.used_bytes, device.limit_bytes, SHORT_BAR, paint),
            picture
                .used_permille(container, device)
                .map_or_else(unknown, permille_text),
            seen.granted_permille
                .map_or_else(unknown, |granted| match granted {
                    0 => paint.yellow("0%"),
                    granted => permille_text(u32::from(granted)),
                }),
            asked_text(container.policy, device.core_percent, device.floor_percent),
            warn(waiting),
            warn(throttled),
            number(launches(&device.compute)),
            last_text(picture, container, device),
            first(ooms),
            match word {
                "running" => String::from(word),
                word => paint.yellow(word),
            },
        ]);
    }
    for process in &container.processes {
        process_rows(picture, container, process, paint, table);
    }
    ended_rows(picture, container, paint, table);
}

/// The memory that ended processes hold until the driver has released it.
fn ended_rows(picture: &Picture, container: &ContainerView, paint: Paint, table: &mut Table) {
    let mut name = Some(String::from("  ended processes"));
    for device in container.devices.iter().filter(|it| it.ended_bytes > 0) {
        table.row(vec![
            name.take().unwrap_or_default(),
            String::new(),
            gpu_text(picture, device),
            Size(device.ended_bytes).to_string(),
            share(device.ended_bytes, device.limit_bytes),
            bar(device.ended_bytes, device.limit_bytes, SHORT_BAR, paint),
        ]);
    }
}

fn process_rows(
    picture: &Picture,
    container: &ContainerView,
    process: &ProcessView,
    paint: Paint,
    table: &mut Table,
) {
    let pid = process.host_pid.unwrap_or(process.pid);
    let mut name = Some(format!("  {pid} {}", process.name));
    for (device, used) in container.devices.iter().zip(&process.devices) {
        let has_any =
            used.confirmed_bytes > 0 || used.pending_bytes > 0 || launches(&used.compute) > 0;
        let is_last_chance = name.is_some() && device.index + 1 == container.devices.len();
        if !has_any && !is_last_chance {
            continue;
        }
        table.row(vec![
            name.take().unwrap_or_default(),
            String::new(),
            gpu_text(picture, device),
            Size(used.confirmed_bytes).to_string(),
            share(used.confirmed_bytes, device.limit_bytes),
            bar(used.confirmed_bytes, device.limit_bytes, SHORT_BAR, paint),
            percent_text(picture.process_busy(&device.uuid, process.host_pid)),
            String::new(),
            String::new(),
            String::new(),
            span(picture.throttled_ns(&used.compute)),
            number(launches(&used.compute)),
            picture.since_ns(&used.compute).map_or_else(unknown, span),
            String::new(),
            match picture.overdue_ns(&used.compute) {
                Some(ns) => paint.yellow(&format!("overdue {}", span(ns))),
                None => String::new(),
            },
        ]);
    }
}

/// `6Gi / 8Gi`, and how much of it is on the host.
fn memory_text(device: &DeviceView) -> String {
    let text = used_of(device.used_bytes, device.limit_bytes);
    match device.oversubscribed_bytes {
        0 => text,
        bytes => format!("{text}, {} on host", Size(bytes)),
    }
}

/// Time since the last launch. Launches that are not measured leave no time, but a container that used the
/// GPU in the last second must have launched recently.
fn last_text(picture: &Picture, container: &ContainerView, device: &DeviceView) -> String {
    let is_busy = picture.used_permille(container, device) > Some(0);
    match picture.since_ns(&device.compute) {
        // NVML's values lag by about a second.
        since if is_busy && since.is_none_or(|ns| ns > 3_000_000_000) => String::from("<1s"),
        since => since.map_or_else(unknown, span),
    }
}

fn launches(compute: &ComputeSnapshot) -> u64 {
    compute.launches.saturating_add(compute.graph_launches)
}

fn unknown() -> String {
    String::from("–")
}

fn draw_notes(picture: &Picture, paint: Paint, out: &mut String) {
    let mut notes: Vec<String> = picture.inventory.faults.clone();
    for container in &picture.views.containers {
        if container.unaccounted_bytes > 0 {
            notes.push(format!(
                "{}: NVML sees {} more than its region knows of",
                full_name(container),
                Size(container.unaccounted_bytes)
            ));
        }
    }
    for container in &picture.views.containers {
        notes.extend(overdue_notes(picture, container));
    }
    for broken in &picture.views.broken {
        notes.push(format!("{}: {}", broken.path.display(), broken.reason));
    }
    if !picture.views.unreadable.is_empty() {
        notes.push(format!(
            "the containers of {} are not shown: only they and root can read them",
            count(picture.views.unreadable.len(), "other user")
        ));
    }
    if !notes.is_empty() {
        writeln!(out).ok();
    }
    for note in notes {
        writeln!(out, "{}", paint.yellow(&format!("! {note}"))).ok();
    }
}

/// A kernel that never ends takes time from all others on its GPU, and no limit ends it.
fn overdue_notes(picture: &Picture, container: &ContainerView) -> Vec<String> {
    let of_process = |process: &ProcessView| {
        let pid = process.host_pid.unwrap_or(process.pid);
        let each = container.devices.iter().zip(&process.devices);
        let overdue = each.filter_map(|(device, used)| {
            let ns = picture.overdue_ns(&used.compute)?;
            let gpu = gpu_text(picture, device);
            Some(format!(
                "{}: a kernel of process {pid} ({}) on GPU {gpu} should have ended {} ago; only its own end \
                 or the end of the process stops it",
                full_name(container),
                process.name,
                span(ns)
            ))
        });
        overdue.collect::<Vec<_>>()
    };
    container.processes.iter().flat_map(of_process).collect()
}

fn share(used: u64, limit: u64) -> String {
    percent(used, limit)
        .map(|percent| format!("{percent}%"))
        .unwrap_or_default()
}

fn count(number: usize, what: &str) -> String {
    if number == 1 {
        format!("1 {what}")
    } else {
        format!("{number} {what}s")
    }
}

fn count_es(number: usize, what: &str) -> String {
    if number == 1 {
        format!("1 {what}")
    } else {
        format!("{number} {what}es")
    }
}
