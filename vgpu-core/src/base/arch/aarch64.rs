//! 64-bit ARM, with its procedure call standard (AAPCS64).

/// The body of a function that replaces the loader's: saves the arguments, asks the rule, and jumps to its answer or
/// returns.
macro_rules! ask_and_jump {
    ($rule:path) => {
        // 48 bytes keep the stack aligned to 16: the frame, three arguments, and 8 that are not used. x16 may hold
        // the target of a jump under branch target identification, and no function expects a value in it.
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-48]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "add x0, sp, #16",
            "bl {rule}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            "cbz x16, 2f",
            "br x16",
            "2:",
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
        core::arch::asm!("mov {}, sp", out(reg) pointer, options(nomem, nostack, preserves_flags));
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
            "mrs {block}, tpidr_el0",
            "adrp {distance}, :gottprel:vgpu_thread_block",
            "ldr {distance}, [{distance}, #:gottprel_lo12:vgpu_thread_block]",
            "add {block}, {block}, {distance}",
            block = out(reg) block,
            distance = out(reg) _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    core::ptr::with_exposed_provenance_mut(block)
}
