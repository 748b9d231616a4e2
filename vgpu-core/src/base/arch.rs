//! The only assembly: functions that replace the loader's and jump on to them, so that the real one still sees its
//! caller's return address (`RTLD_NEXT` and `$ORIGIN` depend on it), and a thread's room at a fixed distance from its
//! pointer. One file for each processor. Never decides anything: `linker.rs` does.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the shared memory's layout is for processors with 64-bit addresses");

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "the library's assembly is written for x86-64 and aarch64: write src/base/arch/NAME.rs for this processor"
);

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as processor;
#[cfg(target_arch = "x86_64")]
use x86_64 as processor;

pub(crate) use processor::{ask_and_jump, stack_pointer, thread_block};

/// The arguments of a replaced function, saved on its stack. The rule may change it before the jump.
#[repr(C)]
pub(crate) struct Arguments {
    /// First, second and third argument, as the caller passed them.
    pub(crate) args: [usize; 3],
}

/// Defines exported functions of up to three arguments: the rule looks at the arguments and answers
/// with an address to jump to, or with 0 to return the (possibly changed) first argument.
macro_rules! stand_ins {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty => $rule:path;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the loader's function of this name.
            #[unsafe(naked)]
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                $crate::base::arch::ask_and_jump!($rule)
            }
        )*
    };
}
pub(crate) use stand_ins;

/// Room for what we keep of each thread, in bytes; zeros to begin with.
pub(crate) const THREAD_BYTES: usize = 320;

// Rust's own thread-local variables cost a call of the loader at each look, several times on every
// hooked call. This room is at a distance from the thread's pointer that the loader fixes when it loads the
// library, which it does for libraries that are there when the program starts (decision 0003).
core::arch::global_asm!(
    ".section .tbss.vgpu_thread_block,\"awT\",@nobits",
    ".p2align 6",
    ".globl vgpu_thread_block",
    ".hidden vgpu_thread_block",
    ".type vgpu_thread_block, @object",
    ".size vgpu_thread_block, {bytes}",
    "vgpu_thread_block:",
    ".zero {bytes}",
    ".text",
    bytes = const THREAD_BYTES,
);
