//! The kernels, as text for the driver's compiler. Each works for a number of rounds, so that it
//! takes the same time alone however often it is interrupted, and writes down when it began and
//! ended. A simulated GPU reads how long it takes from its name.

use std::fmt::Write;

/// Multiplications in a round: each waits for the one before.
const ROUND: usize = 32;

/// A record as a kernel writes it: begin, end, rounds, and a number that keeps its work from being left
/// out.
pub(crate) const RECORD_BYTES: usize = 32;
/// What stands before the records: how many have been written.
pub(crate) const HEAD_BYTES: usize = 32;

/// The name of a kernel of so many nanoseconds.
pub(crate) fn name(ns: u64) -> String {
    format!("vgpu_bench__{ns}ns")
}

/// A module with one kernel for each duration. Its parameters: rounds (u64), records (u64, the
/// address of the head), the number of records there is room for less one (u64, ones only).
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
