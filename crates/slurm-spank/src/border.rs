//! The border to Slurm: the symbols by which it knows a plugin, and the few functions of Slurm that are called. Slurm's
//! programs bring these functions; they are looked up when they are needed, so one file serves every release.
//!
//! Never lets a panic pass into Slurm.
#![allow(
    unsafe_code,
    reason = "Slurm calls this file, and this file calls Slurm"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::options::{Arguments, Flag, Refusal, check};
use crate::{permit, release};

/// Slurm stops what it was about to do for a negative answer of a required plugin.
const FAILED: c_int = -1;
const SUCCESS: c_int = 0;
/// `S_JOB_ID` of `spank_item`, by which Slurm tells a job's number.
const S_JOB_ID: c_int = 2;

/// By these symbols Slurm knows a plugin, its kind and the release that it is made for.
#[unsafe(no_mangle)]
pub(crate) static plugin_name: [u8; 5] = *b"vgpu\0";
#[unsafe(no_mangle)]
pub(crate) static plugin_type: [u8; 6] = *b"spank\0";
#[unsafe(no_mangle)]
pub(crate) static plugin_version: AtomicU32 = AtomicU32::new(release::UNKNOWN);
#[unsafe(no_mangle)]
pub(crate) static spank_plugin_version: u32 = 1;

/// Runs when Slurm loads the plugin, before Slurm reads `plugin_version`.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = find_release;

extern "C" fn find_release() {
    let Some(function) = of_slurm(c"slurm_api_version") else {
        return;
    };
    // SAFETY: slurm.h declares `long slurm_api_version(void)` under this name.
    let version =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_long>(function) };
    if let Some(release) = release::of_api(version()) {
        // Relaxed: Slurm reads it in this thread, after this function has returned.
        plugin_version.store(release, Ordering::Relaxed);
    }
}

/// A function of the program that has loaded the plugin.
fn of_slurm(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero byte, and the call reads nothing else.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Writes an error where Slurm's program writes its own: for a task, to the standard error of its command.
fn complain(text: &str) {
    let (Some(function), Ok(text)) = (
        of_slurm(c"slurm_error"),
        CString::new(text.replace('\0', "")),
    ) else {
        return;
    };
    type Error = unsafe extern "C" fn(*const c_char, ...);
    // SAFETY: spank.h declares `void slurm_error(const char *format, ...)` under this name.
    let function = unsafe { std::mem::transmute::<*mut c_void, Error>(function) };
    // SAFETY: the format takes one string, and both end with a zero byte.
    unsafe { function(c"vgpu: %s".as_ptr(), text.as_ptr()) }
}

/// Slurm's `struct spank_option`.
#[repr(C)]
struct SpankOption {
    name: *const c_char,
    argument: *const c_char,
    usage: *const c_char,
    has_argument: c_int,
    value: c_int,
    callback: extern "C" fn(c_int, *const c_char, c_int) -> c_int,
}

/// The options that were given, in the order of [`Flag::ALL`].
static GIVEN: Mutex<[Option<String>; 3]> = Mutex::new([None, None, None]);

fn given() -> std::sync::MutexGuard<'static, [Option<String>; 3]> {
    GIVEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs a function of ours for Slurm.
fn guarded(body: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(refusal)) => {
            refusal.to_string().lines().for_each(complain);
            FAILED
        }
        Err(_) => FAILED,
    }
}

/// Slurm calls it for an option of a command line, and once more on each node for the options of a job.
extern "C" fn take_option(place: c_int, value: *const c_char, _remote: c_int) -> c_int {
    guarded(|| {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let option = *Flag::ALL
            .get(place)
            .ok_or_else(|| Refusal::new("Slurm names an option that was not registered"))?;
        let text = if value.is_null() {
            String::new()
        } else {
            // SAFETY: Slurm gives the option's value as a string, which lives during the call.
            unsafe { CStr::from_ptr(value) }
                .to_string_lossy()
                .into_owned()
        };
        check(option, &text)?;
        if let Some(slot) = given().get_mut(place) {
            *slot = Some(text);
        }
        Ok(())
    })
}

fn register(spank: *mut c_void) -> Result<(), Refusal> {
    let Some(function) = of_slurm(c"spank_option_register") else {
        return Ok(());
    };
    type Register = unsafe extern "C" fn(*mut c_void, *const SpankOption) -> c_int;
    // SAFETY: spank.h declares `spank_option_register(spank_t, struct spank_option *)` under this name.
    let function = unsafe { std::mem::transmute::<*mut c_void, Register>(function) };
    for (value, option) in (0..).zip(Flag::ALL) {
        let (name, argument, usage) = match option {
            Flag::Memory => (
                c"gpumem",
                c"SIZE",
                c"at most this much memory of each GPU of the job, such as 4Gi",
            ),
            Flag::Cores => (
                c"gpucores",
                c"PERCENT",
                c"at most this part of each GPU's time, such as 30",
            ),
            Flag::Priority => (
                c"gpupriority",
                c"NUMBER",
                c"1 is usual, a higher number runs later",
            ),
        };
        let option = SpankOption {
            name: name.as_ptr(),
            argument: argument.as_ptr(),
            usage: usage.as_ptr(),
            has_argument: 1,
            value,
            callback: take_option,
        };
        // SAFETY: the handle is the one that Slurm has just given, and Slurm copies the option.
        let code = unsafe { function(spank, &raw const option) };
        if code != SUCCESS {
            return Err(Refusal::new(format!(
                "Slurm did not accept the option --{} ({code}); another plugin may have it",
                name.to_string_lossy()
            )));
        }
    }
    Ok(())
}

fn arguments(count: c_int, words: *const *const c_char) -> Result<Arguments, Refusal> {
    let count = usize::try_from(count).unwrap_or(0);
    let words = match count {
        0 => &[],
        // SAFETY: Slurm gives `count` pointers, which live during the call.
        count => unsafe { std::slice::from_raw_parts(words, count) },
    };
    let text = |word: &*const c_char| {
        // SAFETY: each of Slurm's pointers is a string, which lives during the call.
        let word = unsafe { CStr::from_ptr(*word) };
        word.to_string_lossy().into_owned()
    };
    let list: Vec<String> = words.iter().map(text).collect();
    Arguments::read(&list)
}

/// Slurm calls it in each of its programs that loads the plugin.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn slurm_spank_init(
    spank: *mut c_void,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    guarded(|| {
        arguments(count, words)?;
        register(spank)
    })
}

/// Slurm calls it in each task, as root, before the task becomes the job's user.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn slurm_spank_task_init_privileged(
    spank: *mut c_void,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    guarded(|| {
        let arguments = arguments(count, words)?;
        let job = job(spank)?;
        // SAFETY: takes a number, and changes only which mounts this process sees.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Refusal::new(format!(
                "cannot give the task a mount namespace: {error}"
            )));
        }
        let given = given();
        let options: Vec<_> = Flag::ALL
            .into_iter()
            .zip(given.iter())
            .filter_map(|(option, value)| Some((option, value.clone()?)))
            .collect();
        permit::ask(&arguments, job, &options)
    })
}

fn job(spank: *mut c_void) -> Result<u32, Refusal> {
    let function = of_slurm(c"spank_get_item")
        .ok_or_else(|| Refusal::new("this Slurm has no spank_get_item"))?;
    type Item = unsafe extern "C" fn(*mut c_void, c_int, ...) -> c_int;
    let mut job = 0_u32;
    // SAFETY: spank.h declares `spank_get_item(spank_t, spank_item_t, ...)` under this name.
    let function = unsafe { std::mem::transmute::<*mut c_void, Item>(function) };
    // SAFETY: spank.h says that S_JOB_ID takes a pointer to a uint32_t; the handle is the one that Slurm has just given.
    let code = unsafe { function(spank, S_JOB_ID, &raw mut job) };
    match code {
        SUCCESS => Ok(job),
        code => Err(Refusal::new(format!(
            "Slurm does not tell the job's number ({code})"
        ))),
    }
}
