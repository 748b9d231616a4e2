//! Makes the exported functions: one for each row of `cuda_api::driver_functions!` whose name a
//! module of src/calls/ implements, and an answer "not supported" for every other name of the driver.
//!
//! A module implements a driver function as a row of its table, `calls! { cuEventQuery(event) => …; }`, under the driver's
//! own name. The types of the arguments come from the row of `driver_functions!`: build.rs writes the macro `typed!` with the
//! signature of each row for that. A `_ptsz` or `_ptds` form that no module writes is the plain form with per-thread default
//! streams.
//! It also links the library as the real one is: its SONAME, and its own symbols bound to itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// Arguments of a row: name and type of each.
type Arguments = &'static [(&'static str, &'static str)];

macro_rules! rows {
    ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {
        &[$((stringify!($name), &[$((stringify!($arg), stringify!($ty))),*])),*]
    };
}

const ROWS: &[(&str, Arguments)] = cuda_api::driver_functions!(rows);

/// Variables that the debugger reads and writes in the driver; everything else is a function.
const DEBUGGER_WORDS: &[&str] = &[
    "cudbgApiClientPid",
    "cudbgApiClientRevision",
    "cudbgAttachHandlerAvailable",
    "cudbgDebuggerCapabilities",
    "cudbgDebuggerInitialized",
    "cudbgDetachSuspendedDevicesMask",
    "cudbgEnableIntegratedMemcheck",
    "cudbgEnableLaunchBlocking",
    "cudbgEnablePreemptionDebugging",
    "cudbgInjectionPath",
    "cudbgIpcFlag",
    "cudbgReportDriverApiErrorFlags",
    "cudbgReportedDriverApiErrorCode",
    "cudbgReportedDriverApiErrorFuncNameAddr",
    "cudbgReportedDriverApiErrorFuncNameSize",
    "cudbgReportedDriverInternalErrorCode",
    "cudbgResumeForAttachDetach",
    "cudbgRpcEnabled",
    "cudbgSessionId",
    "cudbgUseExternalDebugger",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // A thread of ours and a fork handler may run at any time, so the code must stay loaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let written = written_functions();
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("exports.rs"), exports(&written)).expect("OUT_DIR is ours");
    fs::write(Path::new(&out).join("typed.rs"), typed()).expect("OUT_DIR is ours");
}

/// `typed!`: a driver function with the signature of its row around a body.
fn typed() -> String {
    let mut out = String::from("// Made by build.rs.\nmacro_rules! typed {\n");
    for (name, arguments) in ROWS {
        let named: Vec<String> = arguments
            .iter()
            .map(|(arg, _)| format!("${arg}:ident"))
            .collect();
        let declared: Vec<String> = arguments
            .iter()
            .map(|(arg, ty)| format!("${arg}: {ty}"))
            .collect();
        writeln!(
            out,
            "    ({name} ({}) $body:expr) => {{ pub(crate) fn {name}({}) -> $crate::base::border::Done {{ $body }} }};",
            named.join(", "),
            declared.join(", "),
        )
        .expect("a string takes all");
    }
    out.push_str(
        "    ($name:ident $arguments:tt $body:expr) => {
        compile_error!(concat!(stringify!($name), \": no row of driver_functions! has this name and number of arguments\"));
    };\n}\n",
    );
    out
}

/// The driver functions that modules write: name, and the module's path.
fn written_functions() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    collect(
        Path::new("src/lib.rs"),
        Path::new("src"),
        "crate",
        &mut found,
    );
    found
}

/// Reads a module and those that it declares.
fn collect(file: &Path, below: &Path, module: &str, found: &mut BTreeMap<String, String>) {
    let text = fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("{} is declared, but: {error}", file.display()));
    let mut is_in_table = false;
    for line in text.lines() {
        let declared = line
            .strip_prefix("pub(crate) ")
            .unwrap_or(line)
            .strip_prefix("mod ");
        if let Some(inner) = declared.and_then(|rest| rest.strip_suffix(';')) {
            let file = below.join(format!("{inner}.rs"));
            collect(
                &file,
                &below.join(inner),
                &format!("{module}::{inner}"),
                found,
            );
        }
        match line {
            "calls! {" => is_in_table = true,
            "}" => is_in_table = false,
            _ => {}
        }
        let names = if is_in_table {
            names_in_table(line)
        } else {
            line.strip_prefix("pub(crate) fn ").into_iter().collect()
        };
        for name in names.into_iter().filter_map(function_name) {
            let earlier = found.insert(name.to_owned(), module.to_owned());
            assert!(
                earlier.is_none(),
                "{name} is written twice: {earlier:?} and {module}"
            );
        }
    }
}

/// The names before the arguments of a row of a table, or in a continued line of names.
fn names_in_table(line: &str) -> Vec<&str> {
    let Some(row) = line
        .strip_prefix("    ")
        .filter(|row| row.starts_with("cu"))
    else {
        return Vec::new();
    };
    let names = row.split_once('(').map_or(row, |(names, _)| names);
    names.split(',').map(str::trim).collect()
}

/// The driver function that a text begins with.
fn function_name(text: &str) -> Option<&str> {
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let name = text.get(..end)?;
    let is_drivers = name
        .strip_prefix("cu")
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    is_drivers.then_some(name)
}

fn exports(written: &BTreeMap<String, String>) -> String {
    let rows: BTreeMap<&str, Arguments> = ROWS.iter().copied().collect();
    let exported: BTreeSet<&str> = cuda_api::DRIVER_SYMBOLS.iter().copied().collect();
    let handed_out: BTreeSet<&str> = cuda_api::PROC_ADDRESSES
        .iter()
        .map(|address| address.symbol)
        .collect();
    for name in NEED_NO_INIT.iter().chain(UNSAFE_IN_CAPTURE) {
        assert!(written.contains_key(*name), "no module writes {name}");
    }
    for name in written.keys() {
        assert!(
            rows.contains_key(name.as_str()),
            "{name} has no row in cuda_api::driver_functions!"
        );
    }

    let mut out = String::from("// Made by build.rs.\n");
    let mut addresses = Vec::new();
    for name in exported.union(&handed_out) {
        // A driver that is older than a name takes it out again as it is loaded.
        let attribute = "#[cfg_attr(not(test), unsafe(no_mangle))]";
        if DEBUGGER_WORDS.contains(name) {
            writeln!(
                out,
                "{attribute}\npub(crate) static {name}: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);"
            )
        } else if let Some((body, per_thread)) = body(name, written, &rows) {
            let arguments = rows.get(name).copied().unwrap_or_default();
            let declared: Vec<String> =
                arguments.iter().map(|(arg, ty)| format!("{arg}: {ty}")).collect();
            let passed: Vec<&str> = arguments.iter().map(|(arg, _)| *arg).collect();
            let needs_init = !NEED_NO_INIT.contains(name);
            let is_unsafe = UNSAFE_IN_CAPTURE.contains(name);
            addresses.push(*name);
            writeln!(
                out,
                "{attribute}\npub(crate) unsafe extern \"C-unwind\" fn {name}({}) -> CuResult {{\n    \
                 entry::call({name:?}, {needs_init}, {is_unsafe}, {per_thread}, || {body}({}))\n}}",
                declared.join(", "),
                passed.join(", "),
            )
        } else {
            addresses.push(*name);
            writeln!(
                out,
                "{attribute}\npub(crate) extern \"C-unwind\" fn {name}() -> CuResult {{\n    CuResult::NOT_SUPPORTED\n}}"
            )
        }
        .expect("a string takes all");
    }
    writeln!(out, "/// Every driver function, sorted by name.").expect("a string takes all");
    writeln!(
        out,
        "pub(crate) static ADDRESSES: [Address; {}] = [",
        addresses.len()
    )
    .expect("a string takes all");
    for name in &addresses {
        writeln!(
            out,
            "    Address {{ name: {name:?}, address: {name} as *const (), other: other_{name} as *const () }},"
        )
        .expect("a string takes all");
    }
    out.push_str("];\n");
    other_addresses(&mut out, &addresses);
    versions(&mut out);
    out
}

/// A second address of every function, which jumps to the first: a driver may hand out another one than it exports.
fn other_addresses(out: &mut String, names: &[&str]) {
    let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("aarch64") => "b",
        _ => "jmp",
    };
    out.push_str("unsafe extern \"C-unwind\" {\n");
    for name in names {
        writeln!(
            out,
            "    #[link_name = \"vgpu_other_{name}\"]\n    fn other_{name}();"
        )
        .expect("a string takes all");
    }
    out.push_str("}\n");
    for name in names {
        writeln!(
            out,
            "core::arch::global_asm!(\".hidden vgpu_other_{name}\", \".globl vgpu_other_{name}\", \
             \"vgpu_other_{name}: {jump} {{}}\", sym {name});"
        )
        .expect("a string takes all");
    }
}

/// The CUDA version that first had each function, if known.
fn versions(out: &mut String) {
    let mut since: BTreeMap<&str, i32> = BTreeMap::new();
    for row in cuda_api::PROC_ADDRESSES {
        let least = since.entry(row.symbol).or_insert(row.since);
        *least = row.since.min(*least);
    }
    writeln!(
        out,
        "/// The CUDA version that first had a function, sorted by name.\n\
         pub(crate) static SINCE: [(&str, u32); {}] = [",
        since.len()
    )
    .expect("a string takes all");
    for (name, version) in since {
        writeln!(out, "    ({name:?}, {version}),").expect("a string takes all");
    }
    out.push_str("];\n");
}

/// Functions that a program may call before `cuInit`.
const NEED_NO_INIT: &[&str] = &[
    "cuCheckpointOperationComplete",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessGetRestoreThreadId",
    "cuCheckpointProcessGetState",
    "cuCheckpointProcessLock",
    "cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetExportTable",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuInit",
];

/// Functions that are "unsafe" during a capture: they are not given to a stream, and may wait for the GPU. Functions
/// about a stream or an event have their own rules.
const UNSAFE_IN_CAPTURE: &[&str] = &[
    "cuArray3DCreate",
    "cuArray3DCreate_v2",
    "cuArrayCreate",
    "cuArrayCreate_v2",
    "cuArrayDestroy",
    "cuCtxSetLimit",
    "cuIpcCloseMemHandle",
    "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAlloc",
    "cuMemAllocHost",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemFree",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuModuleUnload",
];

/// Path of the function behind an export, and whether its default stream is the thread's own.
fn body(
    name: &str,
    written: &BTreeMap<String, String>,
    rows: &BTreeMap<&str, Arguments>,
) -> Option<(String, bool)> {
    let per_thread = name.ends_with("_ptsz") || name.ends_with("_ptds");
    if let Some(module) = written.get(name) {
        return Some((format!("{module}::{name}"), per_thread));
    }
    let plain = name
        .strip_suffix("_ptsz")
        .or_else(|| name.strip_suffix("_ptds"))?;
    let module = written.get(plain)?;
    let types = |name: &str| {
        rows.get(name)
            .map(|row| row.iter().map(|(_, ty)| *ty).collect())
    };
    let (own, other): (Option<Vec<&str>>, Option<Vec<&str>>) = (types(name), types(plain));
    assert!(
        own.is_some() && own == other,
        "{name} and {plain} differ: {name} needs code of its own"
    );
    Some((format!("{module}::{plain}"), true))
}
