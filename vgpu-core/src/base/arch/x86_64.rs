//! x86-64, with the calling convention of System V.

/// The body of a function that replaces the loader's: saves the arguments, asks the rule, and jumps
/// to its answer or returns.
macro_rules! ask_and_jump {
    ($rule:path) => {
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
    };
}
pub(crate) use ask_and_jump;

/// The approximate position of the stack, which grows down.
#[inline(always)]
pub(crate) fn stack_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads one register and touches nothing.
    unsafe {
        core::arch::asm!("mov {}, rsp", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}

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
