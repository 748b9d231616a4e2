//! include/vgpu.h says in C what `layout` says in Rust: asked of a C compiler, and read back by
//! bindgen. That the committed header is fresh is a test of xtask, which makes it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use vgpu_abi::layout::*;

/// Size, alignment and the offset of every field.
#[derive(Debug, Default, PartialEq, Eq)]
struct Layout {
    size: usize,
    align: usize,
    fields: BTreeMap<String, usize>,
}

macro_rules! layouts {
    ($($type:ident { $($field:ident),* $(,)? })*) => {
        BTreeMap::from([$((
            stringify!($type).to_owned(),
            Layout {
                size: size_of::<$type>(),
                align: align_of::<$type>(),
                fields: BTreeMap::from([$((
                    stringify!($field).to_owned(),
                    std::mem::offset_of!($type, $field),
                )),*]),
            },
        )),*])
    };
}

fn in_rust() -> BTreeMap<String, Layout> {
    layouts! {
        RegionHeader { magic, version, header_bytes, region_bytes, device_count, device_capacity,
            slot_capacity, slot_bytes, shared_capacity, oom_capacity, created_unix_ns, reserved_0,
            slots_high_water, shared_high_water, shared_wanted_ns, shared_last, reserved_1, slots_in_use, refused, waits_ran_out,
            locks_retaken, rejoined, reaped, shared_full, ooms, slots_full, past_hook_calls,
            gate_waits, reserved_2 }
        GateWaits { by_length, ns_by_cause, reserved }
        RegionDevice { uuid, reserved_0, shared, context_bytes, module_bytes, physical_bytes, wanted_ns,
            last, runtime_bytes, reserved_1, credit_ns, credit_at_ns, busy_ns, leased_ns, unknown, unknown_at_ns,
            owed_ns, reserved_2, past }
        SlotHead { state, pid, generation, start_time, pid_namespace, start_stack, joined_unix_ns,
            name, hook_calls, image, gone_since_ns, abilities, reserved }
        ComputeUse { launches, graph_launches, busy_ns, in_flight_ns, last_launch_ns, throttled_ns,
            waiting_since_ns, leased_ns, waits, copies, copy_bytes, host_functions,
            unknown_launches, occupied_ns, expected_by_ns, progress_ns }
        DeviceUse { confirmed, contexts, modules, oversubscribed, loading_since_ns, away, loading_bytes, reserved_0, pending, reserved_1,
            compute }
        Slot { head, devices }
        SharedObject { state, device, key, bytes, sequence, family, reserved, holders }
        OomHolder { pid, slot, bytes }
        OomEntry { sequence, time_unix_ns, pid, device, asked, limit, used, why, reserved_0, call,
            holders, unaccounted, reserved_1 }
        RegionLayout { header, devices, ooms, shared, slots }
        HostFileHeader { magic, version, copy_bytes, file_bytes, current, heartbeat_ns, seen,
            unaccounted, unaccounted_beside, intervals, reserved }
        LimitsDevice { uuid, memory_bytes, physical_bytes, context_bytes, module_bytes,
            core_percent, floor_percent, resident_bytes, reserved_1 }
        LimitsCopy { version, device_count, generation, priority, policy, unlisted, reserved_0,
            devices, reserved_1, checksum }
        LimitsLayout { header, copies }
        TargetsEntry { generation, slot_generation, host_pid, released, overhead_bytes,
            grants, own_parts, checksum }
        TargetsCopy { entries }
        TargetsLayout { header, copies }
    }
}

macro_rules! constants {
    ($($name:ident)*) => { [$((stringify!($name), $name as u64)),*] };
}

fn constants() -> Vec<(&'static str, u64)> {
    constants! {
        MAX_DEVICES MAX_SLOTS MAX_SHARED MAX_OOMS MAX_HOLDERS UUID_BYTES CALL_BYTES HOOK_GROUPS
        SLOT_WORDS WAIT_LENGTHS WAIT_CAUSES REGION_MAGIC REGION_VERSION LIMITS_MAGIC LIMITS_VERSION TARGETS_MAGIC
        TARGETS_VERSION CHARGE_BYTES_MASK CHARGE_COUNT_SHIFT CHARGE_TAG_SHIFT SLOT_FREE
        SLOT_JOINING SLOT_USED SHARED_FREE SHARED_CHANGING SHARED_LIVE LOCK_SLOTS LOCK_DEVICES
        LOCK_SHARED
    }
    .into()
}

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/vgpu.h")
}

#[test]
fn a_c_compiler_finds_every_field_where_rust_does() {
    let mut program = String::from("#include <stddef.h>\n#include \"vgpu.h\"\n");
    for (name, layout) in in_rust() {
        let (size, align) = (layout.size, layout.align);
        let _ = writeln!(
            program,
            "_Static_assert(sizeof(Vgpu{name}) == {size}, \"{name}\");"
        );
        let _ = writeln!(
            program,
            "_Static_assert(_Alignof(Vgpu{name}) == {align}, \"{name}\");"
        );
        for (field, offset) in layout.fields {
            let _ = writeln!(
                program,
                "_Static_assert(offsetof(Vgpu{name}, {field}) == {offset}, \"{name}.{field}\");"
            );
        }
    }
    for (name, value) in constants() {
        let _ = writeln!(
            program,
            "_Static_assert(VGPU_{name} == {value}u, \"{name}\");"
        );
    }
    program.push_str("int main(void) { return 0; }\n");
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("check.c");
    std::fs::write(&source, program).unwrap();

    for language in [&["-std=c11", "-x", "c"][..], &["-std=c++17", "-x", "c++"]] {
        let cxx = language.contains(&"c++");
        let mut compile = std::process::Command::new("cc");
        compile
            .args(language)
            .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
        if cxx {
            compile.args(["-D_Static_assert=static_assert", "-D_Alignof=alignof"]);
        }
        let output = compile
            .arg("-I")
            .arg(header().parent().unwrap())
            .arg(&source)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if cxx && said.contains("exec") && said.contains("cc1plus") {
            eprintln!("skipped for C++: there is no C++ compiler here");
            continue;
        }
        assert!(output.status.success(), "{said}");
    }
}

#[test]
fn bindgen_reads_back_the_layout_that_rust_has() {
    let Some(_libclang) = libclang() else {
        eprintln!("skipped: bindgen needs libclang (Debian: libclang-dev)");
        return;
    };
    let bindings = bindgen::Builder::default()
        .header(header().display().to_string())
        .allowlist_type("Vgpu.*")
        .allowlist_var("VGPU_.*")
        .layout_tests(true)
        .formatter(bindgen::Formatter::None)
        .generate()
        .unwrap()
        .to_string();

    let found = layouts_in(&bindings.replace('\n', " "));
    let expected = in_rust();
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (name, layout) in &expected {
        assert_eq!(&found[name], layout, "{name}");
    }
    for (name, value) in constants() {
        let start = bindings.find(&format!("const VGPU_{name} :")).expect(name);
        let text = bindings[start..].split([';']).next().unwrap();
        let number = text.rsplit('=').next().unwrap().trim();
        assert_eq!(number.parse(), Ok(value), "{name}");
    }
}

/// Reads the layout out of the assertions that bindgen writes:
/// `["Size of VgpuSlot"] [… - 2304usize]`.
fn layouts_in(bindings: &str) -> BTreeMap<String, Layout> {
    let mut found = BTreeMap::<String, Layout>::new();
    for piece in bindings.split("[\"").skip(1) {
        let (what, rest) = piece.split_once('"').unwrap();
        let number = rest
            .split_once(" - ")
            .map(|(_, n)| n.split("usize").next().unwrap().trim());
        let Some(number) = number.and_then(|n| n.parse::<usize>().ok()) else {
            continue;
        };
        if let Some(name) = what.strip_prefix("Size of Vgpu") {
            found.entry(name.to_owned()).or_default().size = number;
        } else if let Some(name) = what.strip_prefix("Alignment of Vgpu") {
            found.entry(name.to_owned()).or_default().align = number;
        } else if let Some(name) = what.strip_prefix("Offset of field: Vgpu") {
            let (name, field) = name.split_once("::").unwrap();
            let layout = found.entry(name.to_owned()).or_default();
            layout.fields.insert(field.to_owned(), number);
        }
    }
    found
}

/// Where libclang lies, if it does: bindgen panics without it.
fn libclang() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("LIBCLANG_PATH") {
        return Some(path.into());
    }
    let mut places = vec![
        PathBuf::from("/usr/lib/x86_64-linux-gnu"),
        "/usr/lib64".into(),
    ];
    let versions = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    places.extend(versions.map(|entry| entry.path().join("lib")));
    let has = |place: &PathBuf| {
        let names = std::fs::read_dir(place).into_iter().flatten().flatten();
        names.map(|entry| entry.file_name()).any(|name| {
            let name = name.to_string_lossy();
            name.starts_with("libclang.so")
                || name.starts_with("libclang-")
                    && name.contains(".so")
                    && !name.starts_with("libclang-cpp")
        })
    };
    places.into_iter().find(has)
}
