//! The only assembly: functions that stand in for the loader's and jump on to them, so that the real
//! one still sees its caller's return address (`RTLD_NEXT` and `$ORIGIN` depend on it). x86-64;
//! another processor is one more module here. Never decides anything: `linker.rs` does.

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
compile_error!("the loader's entry points are written for x86-64 only");

/// The arguments that a stand-in was called with, saved on its stack. The rule may change it before the jump.
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
                // Three pushes align the stack for the call (it came in at 8 modulo 16).
                core::arch::naked_asm!(
                    "push rdx",
                    "push rsi",
                    "push rdi",
                    "mov rdi, rsp",
                    "call {rule}",
                    "pop rdi",
                    "pop rsi",
                    "pop rdx",
                    "test rax, rax",
                    "jz 2f",
                    "jmp rax",
                    "2:",
                    "mov rax, rdi",
                    "ret",
                    rule = sym $rule,
                )
            }
        )*
    };
}
pub(crate) use stand_ins;

/// About where the stack stands; it grows down.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads one register and touches nothing.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}

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

/// This thread's room.
#[inline(always)]
pub(crate) fn thread_block() -> *mut u8 {
    let block: usize;
    // SAFETY: reads the thread's pointer and a word that the loader has filled in.
    unsafe {
        core::arch::asm!(
            "mov {block}, qword ptr fs:[0]",
            "add {block}, qword ptr [rip + vgpu_thread_block@GOTTPOFF]",
            block = out(reg) block,
            options(pure, nomem, nostack),
        );
    }
    core::ptr::with_exposed_provenance_mut(block)
}
