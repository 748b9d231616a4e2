//! The kernels, as PTX text. Each kernel works for a number of rounds, so that its own work takes the same time
//! however often it is interrupted, and records its start and end. A simulated GPU takes the duration from the
//! kernel's name.

use std::fmt::Write;

/// The multiplications in a round; each depends on the previous one.
const ROUND: usize = 32;

/// The size of a record: start, end, rounds, and a number that keeps the compiler from removing the work.
pub(crate) const RECORD_BYTES: usize = 32;
/// The size of the header before the records, which counts the written ones.
pub(crate) const HEAD_BYTES: usize = 32;

/// The name of a kernel with this duration in nanoseconds.
pub(crate) fn name(ns: u64) -> String {
    format!("vgpu_bench__{ns}ns")
}

/// A module with one kernel for each duration. Its parameters: rounds (u64), records (u64, the address of the
/// header), and the number of record slots minus one (u64, a mask of ones).
pub(crate) fn module(durations_ns: &[u64]) -> String {
    let mut text = String::from(".version 6.0\n.target sm_50\n.address_size 64\n");
    for ns in durations_ns {
        entry(&mut text, &name(*ns));
    }
    text
}

fn entry(text: &mut String, name: &str) {
    let work = "mad.lo.u32 %work, %work, 1664525, 1013904223;\n".repeat(ROUND);
    // Writing to a String cannot fail.
    let _done = write!(
        text,
        "
.visible .entry {name}(.param .u64 rounds, .param .u64 records, .param .u64 most)
{{
.reg .pred %p;
.reg .b32 %work;
.reg .b64 %left, %rounds, %head, %most, %begin, %end, %at, %one;
ld.param.u64 %left, [rounds];
ld.param.u64 %head, [records];
ld.param.u64 %most, [most];
mov.u64 %rounds, %left;
cvt.u32.u64 %work, %left;
mov.u64 %begin, %globaltimer;
again:
{work}sub.u64 %left, %left, 1;
setp.ne.u64 %p, %left, 0;
@%p bra again;
mov.u64 %end, %globaltimer;
setp.eq.u64 %p, %head, 0;
@%p bra done;
mov.u64 %one, 1;
atom.global.add.u64 %at, [%head], %one;
and.b64 %at, %at, %most;
mul.lo.u64 %at, %at, {RECORD_BYTES};
add.u64 %at, %at, %head;
st.global.u64 [%at+{begin}], %begin;
st.global.u64 [%at+{end}], %end;
st.global.u64 [%at+{rounds}], %rounds;
st.global.u32 [%at+{work_at}], %work;
done:
ret;
}}
",
        begin = HEAD_BYTES,
        end = HEAD_BYTES + 8,
        rounds = HEAD_BYTES + 16,
        work_at = HEAD_BYTES + 24,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_has_a_kernel_whose_name_says_it() {
        let text = module(&[20_000, 5_000_000]);

        assert_eq!(text.matches(".visible .entry").count(), 2);
        assert!(text.contains("vgpu_bench__20000ns("));
        assert!(text.contains("vgpu_bench__5000000ns("));
        assert_eq!(text.matches("mad.lo.u32").count(), 2 * ROUND);
    }
}
