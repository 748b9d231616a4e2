//! Several processes on a board: what they share, what is left when one is killed, and a fork.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Stdio};

use crate::common::{CONTEXT, Driver, MIB, TOTAL, alone, board, call, ok};
use cuda_api::driver::*;

/// Another process on this test's board, which runs the test called `name` and is talked to by lines.
struct Other {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Other {
    fn start(name: &str, settings: &[(&str, &str)]) -> Self {
        let path = std::env::var("VGPU_SIM_BOARD").unwrap();
        let mut command = crate::common::command(name, path.as_ref());
        command
            .envs(settings.iter().copied())
            .env("VGPU_TEST_OTHER", "1")
            .stdout(Stdio::piped());
        // SAFETY: only makes the child die with its parent.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that begins with `said:`.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.lines.read_line(&mut line).unwrap(),
                0,
                "the other process ended"
            );
            // The test harness writes on the same line.
            if let Some((_, said)) = line.trim_end().split_once("said:") {
                return said.to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn is_other() -> bool {
    std::env::var_os("VGPU_TEST_OTHER").is_some()
}

#[allow(clippy::print_stdout, reason = "the two processes talk by lines")]
fn say(line: &str) {
    println!("said:{line}");
}

fn wait_for_a_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn a_killed_process_leaves_nothing() {
    let name = "a_killed_process_leaves_nothing";
    alone(name, &[], |driver| {
        if is_other() {
            driver.context(0);
            driver.alloc(100 * MIB).unwrap();
            let mut ptr = CuDevicePtr(0);
            ok!(
                driver,
                cuMemAllocAsync(&raw mut ptr, 1, std::ptr::null_mut())
            );
            say("ready");
            wait_for_a_line();
            return;
        }
        driver.context(0);
        let mut other = Other::start(name, &[]);
        other.hear();
        assert_eq!(board().used_bytes(0), 2 * CONTEXT + 132 * MIB);

        other.kill();

        assert_eq!(board().used_bytes(0), CONTEXT);
    });
}

#[test]
fn a_forked_child_cannot_use_the_driver_and_frees_nothing() {
    alone(
        "a_forked_child_cannot_use_the_driver_and_frees_nothing",
        &[],
        |driver| {
            let context = driver.context(0);
            let block = driver.alloc(MIB).unwrap();
            // SAFETY: the child makes driver calls, which here touch nothing, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let codes = [
                    call!(driver, cuInit(0)),
                    call!(driver, cuMemFree_v2(block)),
                    call!(driver, cuCtxDestroy_v2(context)),
                ];
                let wrong = codes.iter().any(|code| *code != CuResult::NOT_INITIALIZED);
                // SAFETY: ends without the parent's destructors.
                unsafe { libc::_exit(i32::from(wrong)) };
            }
            let mut status = 0;
            // SAFETY: our own child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };

            assert_eq!(status, 0);
            assert_eq!(board().used_bytes(0), CONTEXT + 2 * MIB);
            ok!(driver, cuMemFree_v2(block));
        },
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).unwrap();
    }
    bytes
}

#[test]
fn an_ipc_handle_opens_the_same_bytes_and_outlives_its_maker() {
    let name = "an_ipc_handle_opens_the_same_bytes_and_outlives_its_maker";
    alone(name, &[], |driver| {
        if is_other() {
            driver.context(0);
            let block = driver.alloc(3 * MIB).unwrap();
            driver.write(block, b"from the other process");
            let mut handle = CuIpcMemHandle { reserved: [0; 64] };
            ok!(driver, cuIpcGetMemHandle(&raw mut handle, block));
            let mut own = CuDevicePtr(0);
            let opened = call!(driver, cuIpcOpenMemHandle_v2(&raw mut own, handle, 1));
            assert_eq!(opened, CuResult::INVALID_CONTEXT);
            say(&hex(&handle.reserved));
            wait_for_a_line();
            assert_eq!(driver.read(block, 4), b"back");
            say("seen");
            wait_for_a_line();
            return;
        }
        driver.context(0);
        let mut other = Other::start(name, &[]);
        let handle = CuIpcMemHandle {
            reserved: unhex(&other.hear()),
        };
        let mut ptr = CuDevicePtr(0);
        ok!(driver, cuIpcOpenMemHandle_v2(&raw mut ptr, handle, 1));
        assert_eq!(driver.read(ptr, 22), b"from the other process");
        assert_eq!(board().used_bytes(0), 2 * CONTEXT + 4 * MIB);
        driver.write(ptr, b"back");
        other.tell("look");
        assert_eq!(other.hear(), "seen");

        other.kill();

        assert_eq!(board().used_bytes(0), CONTEXT + 4 * MIB);
        assert_eq!(driver.read(ptr, 4), b"back");
        assert_eq!(call!(driver, cuMemFree_v2(ptr)), CuResult::INVALID_VALUE);
        ok!(driver, cuIpcCloseMemHandle(ptr));
        assert_eq!(board().used_bytes(0), CONTEXT);
    });
}

#[test]
fn mapped_memory_of_a_descriptor_outlives_its_maker() {
    let name = "mapped_memory_of_a_descriptor_outlives_its_maker";
    alone(name, &[], |driver| {
        let size = 4 << 20;
        if is_other() {
            driver.context(0);
            let mut prop = CuMemAllocationProp::zeroed();
            (prop.kind, prop.requested_handle_types) = (1, 1);
            prop.location = CuMemLocation { kind: 1, id: 0 };
            let mut handle = CuMemAllocationHandle(0);
            ok!(
                driver,
                cuMemCreate(&raw mut handle, size, &raw const prop, 0)
            );
            let base = map(driver, handle, size);
            driver.write(base, b"shared");
            let mut fd = -1_i32;
            ok!(
                driver,
                cuMemExportToShareableHandle((&raw mut fd).cast(), handle, 1, 0)
            );
            let socket = std::env::var("VGPU_TEST_SOCKET").unwrap().parse().unwrap();
            // SAFETY: the end of the pair that the parent left open for us.
            send(&unsafe { OwnedFd::from_raw_fd(socket) }, fd);
            wait_for_a_line();
            return;
        }
        driver.context(0);
        let (ours, theirs) = UnixStream::pair().unwrap();
        // SAFETY: keeps the descriptor across the child's exec.
        unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) };
        let number = theirs.as_raw_fd().to_string();
        let mut other = Other::start(name, &[("VGPU_TEST_SOCKET", &number)]);
        let fd = receive(&ours);
        let mut handle = CuMemAllocationHandle(0);
        let os_handle = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        ok!(
            driver,
            cuMemImportFromShareableHandle(&raw mut handle, os_handle, 1)
        );
        let base = map(driver, handle, size);
        assert_eq!(driver.read(base, 6), b"shared");
        assert_eq!(board().used_bytes(0), 2 * CONTEXT + size as u64);

        other.kill();

        assert_eq!(board().used_bytes(0), CONTEXT + size as u64);
        assert_eq!(driver.read(base, 6), b"shared");
        ok!(driver, cuMemRelease(handle));
        assert_eq!(board().used_bytes(0), CONTEXT + size as u64);
        ok!(driver, cuMemUnmap(base, size));
        assert_eq!(board().used_bytes(0), CONTEXT);
    });
}

fn map(driver: &Driver, handle: CuMemAllocationHandle, size: usize) -> CuDevicePtr {
    let mut base = CuDevicePtr(0);
    let access = CuMemAccessDesc {
        location: CuMemLocation { kind: 1, id: 0 },
        flags: 3,
    };
    ok!(
        driver,
        cuMemAddressReserve(&raw mut base, size, 0, CuDevicePtr(0), 0)
    );
    ok!(driver, cuMemMap(base, size, 0, handle, 0));
    ok!(driver, cuMemSetAccess(base, size, &raw const access, 1));
    base
}

/// Room for one descriptor in a message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

fn message(byte: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: a structure of numbers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = byte;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: computes a length.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    message
}

fn send(socket: &OwnedFd, fd: i32) {
    let (mut byte, mut control) = ([1_u8], Control([0; 64]));
    let mut slice = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let message = message(&mut slice, &mut control);
    // SAFETY: the message has room for one header, which is filled in here.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        assert_eq!(libc::sendmsg(socket.as_raw_fd(), &raw const message, 0), 1);
    }
}

fn receive(socket: &UnixStream) -> OwnedFd {
    let (mut byte, mut control) = ([0_u8], Control([0; 64]));
    let mut slice = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut message = message(&mut slice, &mut control);
    // SAFETY: the message has room for one header, which the kernel fills in.
    unsafe {
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0), 1);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
}

#[test]
fn a_pools_pointer_passes_to_another_process() {
    let name = "a_pools_pointer_passes_to_another_process";
    alone(name, &[], |driver| {
        driver.context(0);
        let mut pool = std::ptr::null_mut();
        let mut ptr = CuDevicePtr(0);
        let mut data = CuMemPoolPtrExportData { reserved: [0; 64] };
        if is_other() {
            let mut props = CuMemPoolProps::zeroed();
            (props.kind, props.handle_types) = (1, 1);
            props.location = CuMemLocation { kind: 1, id: 0 };
            ok!(driver, cuMemPoolCreate(&raw mut pool, &raw const props));
            ok!(
                driver,
                cuMemAllocFromPoolAsync(&raw mut ptr, 4096, pool, std::ptr::null_mut())
            );
            driver.write(ptr, b"pooled");
            let mut fd = -1_i32;
            ok!(
                driver,
                cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, 1, 0)
            );
            ok!(driver, cuMemPoolExportPointer(&raw mut data, ptr));
            let socket = std::env::var("VGPU_TEST_SOCKET").unwrap().parse().unwrap();
            // SAFETY: the end of the pair that the parent left open for us.
            send(&unsafe { OwnedFd::from_raw_fd(socket) }, fd);
            say(&hex(&data.reserved));
            wait_for_a_line();
            return;
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        // SAFETY: keeps the descriptor across the child's exec.
        unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) };
        let number = theirs.as_raw_fd().to_string();
        let mut other = Other::start(name, &[("VGPU_TEST_SOCKET", &number)]);
        let fd = receive(&ours);
        data.reserved = unhex(&other.hear());
        let os_handle = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        ok!(
            driver,
            cuMemPoolImportFromShareableHandle(&raw mut pool, os_handle, 1, 0)
        );
        ok!(
            driver,
            cuMemPoolImportPointer(&raw mut ptr, pool, &raw mut data)
        );
        assert_eq!(driver.read(ptr, 6), b"pooled");
        assert_eq!(board().used_bytes(0), 2 * CONTEXT + 32 * MIB);

        other.kill();
        assert_eq!(board().used_bytes(0), CONTEXT + 4096);
        ok!(driver, cuMemFreeAsync(ptr, std::ptr::null_mut()));
        assert_eq!(board().used_bytes(0), CONTEXT);
    });
}

#[test]
fn a_process_sees_the_gpus_whose_device_nodes_it_was_given() {
    let name = "a_process_sees_the_gpus_whose_device_nodes_it_was_given";
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    let make = |names: &[&str]| {
        for name in names {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
    };
    make(&["nvidiactl", "nvidia-uvm", "nvidia1"]);
    alone(name, &[("VGPU_SIM_DEVICES_DIR", folder)], |driver| {
        let mut count = -1;
        ok!(driver, cuInit(0));
        ok!(driver, cuDeviceGetCount(&raw mut count));
        assert_eq!(count, 1);
        let mut uuid = CuUuid { bytes: [0; 16] };
        ok!(driver, cuDeviceGetUuid(&raw mut uuid, CuDevice(0)));
        assert_eq!(uuid.bytes, board().uuid_bytes(1));
        driver.context(0);
        assert_eq!((board().used_bytes(0), board().used_bytes(1)), (0, CONTEXT));
    });
    let hidden = [
        ("VGPU_SIM_DEVICES_DIR", folder),
        ("CUDA_VISIBLE_DEVICES", "1"),
    ];
    if std::env::var_os("VGPU_TEST_CHILD").is_none() {
        alone_refused(name, &hidden);
        std::fs::remove_file(directory.path().join("nvidiactl")).unwrap();
        alone_refused(name, &hidden[..1]);
    }
}

#[test]
fn a_process_works_on_the_mig_instance_whose_nodes_it_was_given() {
    let name = "a_process_works_on_the_mig_instance_whose_nodes_it_was_given";
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().to_str().unwrap();
    std::fs::create_dir(directory.path().join("nvidia-caps")).unwrap();
    let of_instance = cuda_sim::nodes::capabilities(1, 2);
    let nodes = of_instance.map(|node| format!("nvidia-caps/nvidia-cap{node}"));
    let nodes = nodes.iter().map(String::as_str);
    for node in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"]
        .into_iter()
        .chain(nodes)
    {
        std::fs::write(directory.path().join(node), "").unwrap();
    }
    let settings = [
        ("VGPU_SIM_DEVICES_DIR", folder),
        ("VGPU_SIM_MIG", "1=1g,1g,2g,3g"),
    ];
    alone(name, &settings, |driver| {
        let mut count = -1;
        ok!(driver, cuInit(0));
        ok!(driver, cuDeviceGetCount(&raw mut count));
        assert_eq!(count, 1);
        let mut uuid = CuUuid { bytes: [0; 16] };
        ok!(driver, cuDeviceGetUuid_v2(&raw mut uuid, CuDevice(0)));
        assert_eq!(uuid.bytes, board().instance_uuid_bytes(1, 2));
        driver.context(0);
        let (mut free, mut total) = (0, 0);
        ok!(driver, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        assert_eq!(total as u64, TOTAL / 4);

        // Another instance of the GPU is not this process's.
        let path = std::env::var("VGPU_SIM_BOARD").unwrap();
        let other = board().instance_uuid(1, 3);
        let refused = crate::common::command(name, path.as_ref())
            .env("CUDA_VISIBLE_DEVICES", other)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("CuResult(100)"), "{said}");
    });
}

/// The same test again as a process for which there is no device.
fn alone_refused(name: &str, settings: &[(&str, &str)]) {
    let directory = tempfile::tempdir().unwrap();
    let output = crate::common::command(name, &directory.path().join("board"))
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("CuResult(100)"), "{said}");
}

#[test]
fn a_container_process_is_known_by_its_host_pid() {
    let name = "a_container_process_is_known_by_its_host_pid";
    let node = [("VGPU_SIM_PROC", "/proc")];
    if std::env::var_os("VGPU_TEST_CHILD").is_none() {
        let may = std::process::Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "true"])
            .status();
        if !may.is_ok_and(|status| status.success()) {
            say("skipped: only root may make a pid namespace here");
            return;
        }
    }
    alone(name, &node, |driver| {
        if is_other() {
            driver.context(0);
            say(&std::process::id().to_string());
            wait_for_a_line();
            return;
        }
        // The node's /proc lies in another place for a program in a pid namespace of its own.
        let place = tempfile::tempdir().unwrap();
        let script = format!(
            "mount --bind /proc {0} && exec unshare --pid --fork --kill-child --mount-proc env VGPU_SIM_PROC={0} \"$@\"",
            place.path().display()
        );
        let path = std::env::var("VGPU_SIM_BOARD").unwrap();
        let own = crate::common::command(name, path.as_ref());
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", &script, "sh"])
            .arg(own.get_program())
            .args(own.get_args())
            .env("VGPU_TEST_OTHER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut other = Other { child, lines };

        assert_eq!(other.hear(), "1");
        let found = board().processes(0);
        assert_eq!(found.len(), 1);
        let comm = std::fs::read_to_string(format!("/proc/{}/cmdline", found[0].pid)).unwrap();
        assert!(comm.contains(name), "{} is {comm:?}", found[0].pid);
        assert_eq!(board().used_bytes(0), CONTEXT);

        other.kill();
        for _ in 0..200 {
            if board().used_bytes(0) == 0 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("its memory stays taken: {:?}", board().processes(0));
    });
}
