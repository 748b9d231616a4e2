//! A world for one test: a board of simulated GPUs, a limits file and a usage region in a folder of
//! their own, and programs compiled from tests/preload that run in it under libvgpu.so.
//! Never shares a board between two tests, and never reads anything outside the repository.
#![allow(
    dead_code,
    reason = "each test program uses the part of it that it needs"
)]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::{Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use cuda_sim::{Board, Config};
use tempfile::TempDir;
use vgpu_abi::host::Snapshot;
use vgpu_abi::limits::{DeviceLimit, DeviceUuid, Limits, LimitsFile};
use vgpu_abi::region::{Kind, NewDevice, Region, ShareError, SharedKey};

/// One mebibyte.
pub(crate) const MIB: u64 = 1 << 20;
/// The size of a context on a test's board.
pub(crate) const CONTEXT: u64 = 16 * MIB;
/// Memory of each GPU on a test's board.
pub(crate) const GPU_BYTES: u64 = 1024 * MIB;

/// One test's board, limits, region and programs.
pub(crate) struct World {
    folder: TempDir,
    gpus: usize,
}

impl World {
    /// One GPU, with room for `bytes` beside one context.
    pub(crate) fn with_room(bytes: u64) -> Self {
        Self::with_limits(&[bytes + CONTEXT])
    }

    /// As many GPUs as limits, each in bytes.
    pub(crate) fn with_limits(limits: &[u64]) -> Self {
        Self::with_limits_on(&Config::default(), limits)
    }

    /// The same on a board of `config`, as in `with_board`.
    pub(crate) fn with_limits_on(config: &Config, limits: &[u64]) -> Self {
        Self::with_limits_and(config, limits, CONTEXT)
    }

    /// As `with_limits_on`, with limits that do not contain the size of a context.
    pub(crate) fn without_a_context_size(config: &Config, limits: &[u64]) -> Self {
        Self::with_limits_and(config, limits, 0)
    }

    /// As `with_limits`, on a board with `others` more GPUs, which do not belong to the container.
    pub(crate) fn with_others(others: usize, limits: &[u64]) -> Self {
        let world = Self::with_board(limits.len() + others, &Config::default());
        world.limited(limits, GPU_BYTES, CONTEXT)
    }

    fn with_limits_and(config: &Config, limits: &[u64], context_bytes: u64) -> Self {
        Self::with_board(limits.len(), config).limited(limits, GPU_BYTES, context_bytes)
    }

    /// A container on GPUs of 8 GiB with contexts of 300 MiB, as on a real GPU. Its limits do not contain the size of a
    /// context.
    pub(crate) fn with_large_contexts(config: &Config, limit: u64) -> Self {
        let config = Config {
            memory_bytes: vec![8 * GPU_BYTES],
            context_bytes: 300 * MIB,
            ..config.clone()
        };
        Self::with_gpus(&config).limited(&[limit], 8 * GPU_BYTES, 0)
    }

    /// Makes limits and region.
    fn limited(self, limits: &[u64], physical_bytes: u64, context_bytes: u64) -> Self {
        let world = self;
        let board = world.board();
        let uuid = |gpu| DeviceUuid::new(&board.uuid(gpu)).expect("the board's UUIDs are texts");
        let devices = limits
            .iter()
            .enumerate()
            .map(|(gpu, &memory_bytes)| DeviceLimit {
                uuid: uuid(gpu),
                memory_bytes,
                physical_bytes,
                context_bytes,
                ..DeviceLimit::default()
            });
        let limits_file = Limits {
            devices: devices.collect(),
            ..Limits::default()
        };
        LimitsFile::create(&world.path("limits"), &limits_file).expect("the limits file is new");
        let region: Vec<_> = (0..limits.len())
            .map(|gpu| NewDevice {
                uuid: uuid(gpu),
                physical_bytes,
            })
            .collect();
        Region::create(&world.path("region"), &region, 0o666).expect("the region is new");
        world
    }

    /// Only a board: programs here have no limits file.
    pub(crate) fn without_limits(gpus: usize) -> Self {
        Self::with_board(gpus, &Config::default())
    }

    /// As `without_limits`, with the driver's version, faults and clock of `config`.
    pub(crate) fn with_board(gpus: usize, config: &Config) -> Self {
        Self::with_gpus(&Config {
            memory_bytes: vec![GPU_BYTES; gpus],
            context_bytes: CONTEXT,
            ..config.clone()
        })
    }

    /// A board whose GPUs and contexts have the sizes in `config`.
    fn with_gpus(config: &Config) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("vgpu-test-")
            .tempdir()
            .expect("there is room in the temporary folder");
        let gpus = config.memory_bytes.len();
        let config = Config {
            contrary: config.contrary || all_contrary(),
            ..config.clone()
        };
        Board::create(&folder.path().join("board"), &config).expect("the board is new");
        let world = Self { folder, gpus };
        std::fs::create_dir(world.path("sim")).expect("the folder is new");
        for (name, file) in [
            ("libcuda.so", "libcuda.so"),
            ("libcuda.so.1", "libcuda.so"),
            ("libnvidia-ml.so", "libnvidia_ml.so"),
            ("libnvidia-ml.so.1", "libnvidia_ml.so"),
        ] {
            std::os::unix::fs::symlink(built(file), world.path("sim").join(name))
                .expect("the link is new");
        }
        world
    }

    /// A file of this world.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The simulated driver's own account of the memory that each process holds.
    pub(crate) fn board(&self) -> Board {
        Board::open(&self.path("board")).expect("the board was created with the world")
    }

    /// The region, as a host reads it.
    pub(crate) fn snapshot(&self) -> Snapshot {
        vgpu_abi::host::snapshot(&self.path("region")).expect("the region is whole")
    }

    /// The container's charges on this GPU.
    pub(crate) fn booked(&self, gpu: usize) -> u64 {
        self.snapshot().used_bytes(gpu)
    }

    /// Clears the charges of ended processes, as a host does once the driver has freed their memory. Without a host
    /// and without NVML they stay for two seconds.
    pub(crate) fn bury_the_dead(&self) {
        let region = Region::open(&self.path("region")).expect("the region is whole");
        region.reap();
    }

    /// The memory limit of one GPU, bytes.
    pub(crate) fn limit(&self, gpu: usize) -> u64 {
        let file = LimitsFile::open(&self.path("limits")).expect("the limits file is there");
        let limits = file.read().expect("the limits file is whole");
        limits.devices[gpu].memory_bytes
    }

    /// Changes the memory limit of one GPU while programs run.
    pub(crate) fn set_limit(&self, gpu: usize, bytes: u64) {
        let file = LimitsFile::open(&self.path("limits")).expect("the limits file is there");
        let mut limits = file.read().expect("the limits file is whole");
        limits.devices[gpu].memory_bytes = bytes;
        file.write(&limits).expect("the limits file can be written");
    }

    /// A program of tests/preload, compiled when it is first run.
    pub(crate) fn program(&self, name: &str) -> Program<'_> {
        let mut program = self.command(self.path(name));
        program.source = Some(name.to_owned());
        program
    }

    /// Any program, under the library in this world.
    pub(crate) fn command(&self, file: impl Into<PathBuf>) -> Program<'_> {
        let mut env: Vec<(OsString, OsString)> = vec![
            ("LD_PRELOAD".into(), built("libvgpu.so").into()),
            ("LD_LIBRARY_PATH".into(), self.path("sim").into()),
            ("VGPU_SIM_BOARD".into(), self.path("board").into()),
            ("VGPU_LOG".into(), self.path("log").into()),
            ("VGPU_LOG_LEVEL".into(), "debug".into()),
        ];
        if self.path("limits").exists() {
            env.push(("VGPU_LIMITS".into(), self.path("limits").into()));
            env.push(("VGPU_REGION".into(), self.path("region").into()));
        }
        Program {
            world: self,
            source: None,
            file: file.into(),
            compiler: vec![],
            args: vec![],
            env,
            linked: false,
            static_linked: false,
        }
    }

    /// Compiles a shared library of tests/preload; with `linked`, it depends on libcuda.so.1.
    pub(crate) fn library(&self, name: &str, linked: bool) -> PathBuf {
        let file = self.path(&format!("lib{name}.so"));
        let mut options: Vec<OsString> = vec!["-shared".into(), "-fPIC".into()];
        if linked {
            options.extend(self.link_options());
        }
        compile(&source(name), &file, &options);
        file
    }

    /// Compiles a driver of tests/preload and puts it in the simulated one's place.
    pub(crate) fn put_driver(&self, name: &str, options: &[OsString]) {
        let file = self.path(&format!("lib{name}.so"));
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"].map(OsString::from);
        compile(&source(name), &file, &[shared.as_slice(), options].concat());
        for name in ["sim/libcuda.so", "sim/libcuda.so.1"] {
            std::fs::remove_file(self.path(name)).unwrap();
            std::fs::copy(&file, self.path(name)).unwrap();
        }
    }

    fn link_options(&self) -> Vec<OsString> {
        let mut folder = OsString::from("-L");
        folder.push(self.path("sim"));
        vec!["-Wl,--no-as-needed".into(), folder, "-lcuda".into()]
    }

    /// Fills the table of shared objects, as a container that shares very much would.
    pub(crate) fn fill_the_shared_table(&self) {
        let region = Region::open(&self.path("region")).expect("the region is whole");
        for number in 0.. {
            let key = SharedKey([2 * number + 1, 1]);
            match region.share(key, 0, 0, Kind::Buffer) {
                Ok(()) => {}
                Err(ShareError::TableFull) => break,
                Err(error) => panic!("{error}"),
            }
        }
        // It holds them as long as this process lives.
        std::mem::forget(region);
    }

    /// The library's log, for a failed assertion.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// Whether every board of this run is to be contrary: `VGPU_TEST_CONTRARY=1`.
pub(crate) fn all_contrary() -> bool {
    std::env::var_os("VGPU_TEST_CONTRARY").is_some_and(|value| value == "1")
}

/// How much the charges may exceed the driver's memory on a contrary board, whose steps are finer than the library's:
/// the rounding of a few allocations, and half a context.
pub(crate) const CONTRARY_SLACK: u64 = 8 * MIB + CONTEXT / 2;

/// Whether the charges equal the driver's memory: exactly, or on contrary boards with at most [`CONTRARY_SLACK`]
/// more.
pub(crate) fn agrees(booked: u64, held: u64) -> bool {
    let slack = if all_contrary() { CONTRARY_SLACK } else { 0 };
    (held..=held.saturating_add(slack)).contains(&booked)
}

/// A program that is about to run in a world.
pub(crate) struct Program<'a> {
    world: &'a World,
    source: Option<String>,
    file: PathBuf,
    compiler: Vec<OsString>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    linked: bool,
    static_linked: bool,
}

impl Program<'_> {
    /// Links it to libcuda.so.1.
    pub(crate) fn linked(mut self) -> Self {
        self.linked = true;
        self
    }

    /// Links it statically.
    pub(crate) fn statically(mut self) -> Self {
        self.static_linked = true;
        self
    }

    /// One more argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Sets a variable; the last value counts.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Takes a variable away.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self
    }

    /// As without our library.
    pub(crate) fn native(self) -> Self {
        self.without("LD_PRELOAD")
    }

    /// Preloads `library` before ours.
    pub(crate) fn preload_before(self, library: &Path) -> Self {
        let ours = built("libvgpu.so");
        self.env("LD_PRELOAD", join(library, &ours))
    }

    /// Preloads `library` after ours.
    pub(crate) fn preload_after(self, library: &Path) -> Self {
        let ours = built("libvgpu.so");
        self.env("LD_PRELOAD", join(&ours, library))
    }

    /// An option of the compiler.
    pub(crate) fn option(mut self, option: &str) -> Self {
        self.compiler.push(option.into());
        self
    }

    /// Compiles the program unless it is compiled already.
    pub(crate) fn build(&self) {
        let Some(name) = &self.source else { return };
        if self.file.exists() {
            return;
        }
        let mut options = self.compiler.clone();
        options.push("-pthread".into());
        if self.linked {
            options.extend(self.world.link_options());
        }
        if self.static_linked {
            options.extend(["-static".into(), "-Wno-error".into()]);
        }
        compile(&source(name), &self.file, &options);
    }

    /// The command, for tests that need more than `run`.
    pub(crate) fn command(&self) -> Command {
        self.build();
        let mut command = Command::new(&self.file);
        command
            .args(&self.args)
            .env_clear()
            .current_dir(self.world.folder.path());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self) -> Outcome {
        let output = self
            .command()
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        Outcome {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
            signal: output.status.signal(),
        }
    }

    /// Its output; fails the test if it does not end with 0 or writes to stderr.
    #[track_caller]
    pub(crate) fn prints(&self) -> String {
        let outcome = self.run();
        assert_eq!(
            (outcome.code, outcome.signal, outcome.stderr.as_str()),
            (Some(0), None, ""),
            "it printed:\n{}\nour log:\n{}",
            outcome.stdout,
            self.world.log()
        );
        outcome.stdout
    }

    /// Starts it, to be talked with line by line.
    pub(crate) fn start(&self) -> Running {
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdin = child.stdin.take().expect("it is piped");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        Running {
            child,
            stdin: Some(stdin),
            stdout,
        }
    }
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
}

/// A program that waits for a line before each step and answers with a line after it.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it make a step.
    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it still listens");
        writeln!(stdin, "{line}").expect("it still listens");
    }

    /// The next line that it prints; empty at its end.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it prints text");
        line.trim_end().to_owned()
    }

    /// Tells it a step and reads its answer.
    pub(crate) fn step(&mut self, line: &str) -> String {
        self.tell(line);
        self.line()
    }

    /// Tells it these steps, separated by `;`. Each must succeed, or be refused for memory if it ends in `!`.
    #[track_caller]
    pub(crate) fn steps(&mut self, steps: &str) {
        for step in steps.split(';').map(str::trim) {
            self.accepts(step);
        }
    }

    /// The same, and looks at the world after each step.
    #[track_caller]
    pub(crate) fn steps_and(&mut self, steps: &str, look: impl Fn(&str)) {
        for step in steps.split(';').map(str::trim) {
            self.accepts(step);
            look(step);
        }
    }

    #[track_caller]
    fn accepts(&mut self, step: &str) {
        let (line, code) = step.strip_suffix('!').map_or((step, 0), |line| (line, 2));
        let name = line.split(' ').next().unwrap_or_default();
        assert_eq!(self.step(line), format!("{name} {code}"), "{step}");
    }

    /// Kills it as the kernel's OOM killer would.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// Closes its input and waits for its end.
    pub(crate) fn end(self) -> Option<i32> {
        self.ends().code
    }

    /// The same, with the signal that ended it.
    pub(crate) fn ends(mut self) -> Outcome {
        drop(self.stdin.take());
        let status = self.child.wait().expect("it is our child");
        Outcome {
            stdout: String::new(),
            stderr: String::new(),
            code: status.code(),
            signal: status.signal(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // A test that failed half-way leaves nothing behind; one that ended well has waited already.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// A product of the build, next to the test program. `VGPU_TEST_LIBRARY` names another libvgpu.so to test, such as
/// the one that `cargo xtask dist` made.
pub(crate) fn built(file: &str) -> PathBuf {
    if let (Some(other), "libvgpu.so") = (std::env::var_os("VGPU_TEST_LIBRARY"), file) {
        // Relative to the repository, wherever the test runs; an absolute path stays unchanged.
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(other);
        assert!(file.exists(), "{} is not there", file.display());
        return file;
    }
    let own = std::env::current_exe().expect("a program has a path");
    let file = own.parent().expect("it lies in a folder").join(file);
    assert!(file.exists(), "{} was not built", file.display());
    file
}

/// The folder of the programs. Test programs of other packages are built with this file, too.
fn preload() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/preload"))
}

/// A C or C++ file of tests/preload.
pub(crate) fn source(name: &str) -> PathBuf {
    let folder = preload();
    let file = folder.join(format!("{name}.c"));
    if file.exists() {
        file
    } else {
        folder.join(format!("{name}.cpp"))
    }
}

/// Compiles one file with the system's compiler for its language.
pub(crate) fn compile(source: &Path, to: &Path, options: &[OsString]) {
    let compiler = if source.extension() == Some(OsStr::new("cpp")) {
        "c++"
    } else {
        "cc"
    };
    compile_with(compiler, source, to, options);
}

/// Compiles one file with a compiler of that name. What was compiled before, of the same files with the same options, is
/// copied: hundreds of tests run the same few programs.
pub(crate) fn compile_with(compiler: &str, source: &Path, to: &Path, options: &[OsString]) {
    let Some(kept) = compiled_and_kept(compiler, source, options) else {
        return compile_anew(compiler, source, to, options);
    };
    // Not by this process: a child that another thread forks meanwhile would hold the file open for writing, and a
    // file that is open for writing cannot be executed.
    let copied = Command::new("cp").arg(&kept).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "cp {kept:?}");
}

/// The same for a program of C that no test changes: other tests run the same file. It is made in this folder if it cannot
/// be kept.
pub(crate) fn compiled(source: &Path, folder: &Path, options: &[OsString]) -> PathBuf {
    compiled_and_kept("cc", source, options).unwrap_or_else(|| {
        let to = folder.join(source.file_stem().expect("it is a file"));
        compile_anew("cc", source, &to, options);
        to
    })
}

/// Compiles a program, if that has not been done, and returns where it is kept.
fn compiled_and_kept(compiler: &str, source: &Path, options: &[OsString]) -> Option<PathBuf> {
    let kept = kept_program(compiler, source, options)?;
    if !kept.exists() {
        // Another test may be compiling the same program: each writes a file of its own.
        let own = tempfile::tempdir_in(kept.parent().expect("it lies in a folder")).unwrap();
        let program = own.path().join("program");
        compile_anew(compiler, source, &program, options);
        std::fs::rename(&program, &kept).unwrap();
    }
    Some(kept)
}

/// What a compiler says of itself. `None` if it cannot be started.
fn version_of(compiler: &str) -> Option<Vec<u8>> {
    static VERSIONS: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let mut versions = VERSIONS.lock().unwrap();
    if let Some(known) = versions.get(compiler) {
        return Some(known.clone());
    }
    let output = Command::new(compiler).arg("--version").output().ok()?;
    versions.insert(compiler.to_owned(), output.stdout.clone());
    Some(output.stdout)
}

/// Where a program is kept: the name says all that it is made of. `None` if a file cannot be read.
fn kept_program(compiler: &str, source: &Path, options: &[OsString]) -> Option<PathBuf> {
    let mut hasher = std::hash::DefaultHasher::new();
    (compiler, version_of(compiler)?, source).hash(&mut hasher);
    std::fs::read(source).ok()?.hash(&mut hasher);
    hash_files(preload(), "h", &mut hasher)?;
    for option in options {
        let text = option.to_str()?;
        // The text that a test has generated, in a folder of its own.
        if let Some(folder) = text.strip_prefix("-I") {
            hash_files(Path::new(folder), "inc", &mut hasher)?;
            continue;
        }
        // A program that is linked names the driver by its soname; the folder of the test does not appear in it. Drivers
        // of different kinds differ in length.
        match text.strip_prefix("-L") {
            Some(folder) => {
                let driver = std::fs::metadata(Path::new(folder).join("libcuda.so")).ok()?;
                driver.len().hash(&mut hasher);
            }
            None => text.hash(&mut hasher),
        }
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join(format!("{:016x}", hasher.finish())))
}

/// Hashes the name and the contents of each file in this folder that has this extension. `None` if a file cannot be read.
fn hash_files(folder: &Path, extension: &str, hasher: &mut impl Hasher) -> Option<()> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(folder).ok()? {
        files.push(file.ok()?.path());
    }
    files.retain(|file| file.extension() == Some(OsStr::new(extension)));
    files.sort();
    for file in files {
        file.file_name().hash(hasher);
        std::fs::read(file).ok()?.hash(hasher);
    }
    Some(())
}

fn compile_anew(compiler: &str, source: &Path, to: &Path, options: &[OsString]) {
    let output = Command::new(compiler)
        .args(["-O1", "-g", "-Wall", "-I"])
        .arg(preload())
        .arg(source)
        .arg("-o")
        .arg(to)
        .args(options)
        .output()
        .unwrap_or_else(|error| panic!("cannot start {compiler}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} does not compile:\n{said}",
        source.display()
    );
}

/// Prints that a test cannot run here, and why; scripts/test lists these.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("skipped {test}: {reason}");
}

/// Is this command installed?
pub(crate) fn installed(command: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(command).is_file())
}

fn join(first: &Path, second: &Path) -> OsString {
    let mut list = first.as_os_str().to_owned();
    list.push(":");
    list.push(second);
    list
}
