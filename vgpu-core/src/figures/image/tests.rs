use super::*;
use proptest::prelude::*;

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";

/// The bytes that a text declares beyond its own length.
#[track_caller]
fn text_declares(body: &str, bytes: u64) {
    let text = format!("{HEAD}{body}\n\0");
    let found = declared(&text.as_bytes());
    assert_eq!(
        found,
        Declared {
            bytes: bytes + text.len() as u64 - 1,
            is_whole: true
        },
        "{body}"
    );
}

#[test]
fn size_of_an_image_is_read_from_its_header() {
    let mut elf = [0u8; 64];
    elf[..4].copy_from_slice(b"\x7fELF");
    elf[40..42].copy_from_slice(&0x1000u16.to_le_bytes());
    elf[58] = 64;
    elf[60] = 10;
    let mut fat = [0u8; 64];
    fat[..4].copy_from_slice(&FATBIN.to_le_bytes());
    fat[6] = 16;
    fat[8..10].copy_from_slice(&5000u16.to_le_bytes());

    assert_eq!(size_in(&elf), Some(0x1000 + 640));
    assert_eq!(size_in(&fat), Some(5016));
    assert_eq!(size_in(&[b'.'; 64]), None);
}

#[test]
fn variables_of_a_text_count() {
    text_declares("", 0);
    text_declares(".global .u32 x;", 4);
    text_declares(".visible .global .align 256 .b8 big[4294967296];", 1 << 32);
    text_declares(".global .v4 .f32 v[3];", 48);
    text_declares(".const .f64 c[2][3];", 48);
    text_declares(".weak .global .b8 a[0x10], b[020], c[0b11];", 16 + 16 + 3);
    text_declares(".global .attribute(.managed) .b8 m[100U];", 100);
    text_declares(".global .f32 bias[] = {-1.0, 1.0, 0x3};", 12);
    text_declares(".global .u8 s[] = {1,2,\n3 /* , */, 4};", 4);
    text_declares(".common .global .b64 n<7>;", 56);
    text_declares(".global .b8 a;.global .align 8 .b8 b;", 9);
    text_declares(".version 7.0 .target sm_70 .global .b8 on_one_line[9];", 9);
}

#[test]
fn other_state_spaces_of_a_text_do_not_count() {
    text_declares(".extern .global .b8 elsewhere[4096];", 0);
    text_declares(".shared .b8 s[4096]; .local .b8 l[9];", 0);
    text_declares("// .global .b8 x[99];\n/* .global .b8 y[9]; */", 0);
    text_declares(
        ".visible .entry k(.param .u64 .ptr .global .align 8 p) { ld.global.u32 %r1, [p]; ret; }",
        0,
    );
    text_declares(".file 1 \".global .b8 x[9];\"", 0);
    text_declares(".extern .func f(); .global .b8 y[5];", 5);
}

#[test]
fn unknown_image_is_not_whole() {
    for body in [
        ".global .b8 x[4 * 1024];",
        ".global .unheard x[4];",
        ".global .b8 x[",
        ".extern .global .b8 x[];.global",
    ] {
        let text = format!("{HEAD}{body}\0");
        assert!(!declared(&text.as_bytes()).is_whole, "{body}");
    }
    // A text without an end.
    assert!(!declared(&HEAD.as_bytes()).is_whole);
    assert_eq!(declared(&b"".as_slice()), Declared::UNKNOWN);
}

#[test]
fn sizes_at_the_edge_of_a_number_are_the_largest() {
    let text = format!("{HEAD}.global .b64 x[18446744073709551615];\0");
    assert_eq!(declared(&text.as_bytes()).bytes, u64::MAX);
    let text = format!("{HEAD}.global .b8 x[0xffffffffffffffff], y[1], z[2];\0");
    assert_eq!(declared(&text.as_bytes()).bytes, u64::MAX);
    let text = format!("{HEAD}.global .align 18446744073709551615 .b8 x[2], y[2];\0");
    assert_eq!(declared(&text.as_bytes()).bytes, u64::MAX);
}

/// A cubin with sections of these names, kinds, flags and sizes.
fn cubin_of(sections: &[(&str, u32, u64, u64)]) -> Vec<u8> {
    let mut names = vec![0];
    let mut table = vec![0; 64];
    for &(name, kind, flags, bytes) in sections {
        let mut section = [0; 64];
        section[..4].copy_from_slice(&u32::try_from(names.len()).unwrap().to_le_bytes());
        section[4..8].copy_from_slice(&kind.to_le_bytes());
        section[8..16].copy_from_slice(&flags.to_le_bytes());
        section[24..32].copy_from_slice(&64_u64.to_le_bytes());
        section[32..40].copy_from_slice(&bytes.to_le_bytes());
        section[48] = 8;
        table.extend_from_slice(&section);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    let mut section = [0; 64];
    section[4] = 3;
    section[24..32].copy_from_slice(&64_u64.to_le_bytes());
    section[32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
    table.extend_from_slice(&section);
    let count = u16::try_from(table.len() / 64).unwrap();
    let mut file = vec![0; 64];
    file[..5].copy_from_slice(b"\x7fELF\x02");
    file.extend_from_slice(&names);
    let at = file.len() as u64;
    file[40..48].copy_from_slice(&at.to_le_bytes());
    file[58] = 64;
    file[60..62].copy_from_slice(&count.to_le_bytes());
    file[62..64].copy_from_slice(&(count - 1).to_le_bytes());
    file.extend_from_slice(&table);
    file
}

const GLOBAL: (&str, u32, u64, u64) = (".nv.global", 8, 3, 5 << 30);

#[test]
fn variables_of_a_cubin_count_and_shared_memory_does_not() {
    let file = cubin_of(&[
        GLOBAL,
        (".nv.shared.kernel", 8, 3, 7 << 30),
        (".nv.constant3", 1, 2, 16),
        (".bss", 8, 0, 1 << 40),
    ]);
    let found = declared(&file.as_slice());

    assert_eq!(found.bytes, (5 << 30) + file.len() as u64);
    assert!(found.is_whole);
}

fn entry(kind: u16, flags: u64, unpacked: u64, content: &[u8]) -> Vec<u8> {
    let padded = content.len().next_multiple_of(8);
    let mut entry = vec![0; 64];
    entry[..2].copy_from_slice(&kind.to_le_bytes());
    entry[4] = 64;
    entry[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
    entry[40..48].copy_from_slice(&flags.to_le_bytes());
    entry[56..64].copy_from_slice(&unpacked.to_le_bytes());
    entry.extend_from_slice(content);
    entry.resize(64 + padded, 0);
    entry
}

fn fat_binary_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let entries = entries.concat();
    let mut file = FATBIN.to_le_bytes().to_vec();
    file.extend_from_slice(&[1, 0, 16, 0]);
    file.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    file.extend_from_slice(&entries);
    file
}

#[test]
fn the_largest_entry_of_a_fat_binary_counts() {
    let text = format!("{HEAD}.global .b8 x[1000000];");
    let small = cubin_of(&[(".nv.global", 8, 3, 1000)]);
    let file = fat_binary_of(&[
        entry(2, 0, 0, &small),
        entry(1, 0, 0, text.as_bytes()),
        entry(2, 0, 0, &small),
    ]);
    let found = declared(&file.as_slice());

    assert!(found.is_whole);
    let beyond = found.bytes - file.len() as u64;
    assert!((999_992..=1_000_000).contains(&beyond), "{beyond}");
}

#[test]
fn a_compressed_entry_is_as_long_as_it_says_and_not_whole() {
    let file = fat_binary_of(&[entry(2, 0x2000, 1 << 30, &[0; 64])]);
    let found = declared(&file.as_slice());

    assert_eq!(found.bytes, (1 << 30) - 64 + file.len() as u64);
    assert!(!found.is_whole);
}

#[test]
fn images_that_lie_about_their_size_are_not_whole() {
    let file = cubin_of(&[GLOBAL]);
    for end in 0..file.len() {
        let found = declared(&&file[..end]);
        assert!(!found.is_whole, "{end}");
    }
    let mut long = fat_binary_of(&[entry(2, 0, 0, &file)]);
    long[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(declared(&long.as_slice()), Declared::UNKNOWN);
    let mut far = file;
    far[40..48].copy_from_slice(&(u64::MAX - 5).to_le_bytes());
    assert_eq!(declared(&far.as_slice()), Declared::UNKNOWN);
}

/// Counts what is read, and fails on a read that begins beyond the end twice in a row.
struct Bounded<'a>(&'a [u8], core::cell::Cell<usize>);

impl ImageSource for Bounded<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> usize {
        self.1.set(self.1.get() + 1);
        self.0.read(at, into)
    }
}

proptest! {
    #[test]
    fn any_bytes_have_an_answer(
        start in prop::sample::select(vec![
            b"\x7fELF\x02".to_vec(),
            vec![0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0],
            HEAD.as_bytes().to_vec(),
            Vec::new(),
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let image = [start, rest].concat();
        let source = Bounded(&image, core::cell::Cell::default());
        declared(&source);
        // The work is bounded by the image's length and the number of parts that it may claim.
        prop_assert!(source.1.get() < 1_000_000);
    }

    #[test]
    fn a_changed_image_has_an_answer(
        at in 0usize..600,
        word in any::<u64>(),
    ) {
        let inner = cubin_of(&[GLOBAL, (".symtab", 2, 0, 240)]);
        let mut image = fat_binary_of(&[entry(2, 0, 0, &inner), entry(1, 0, 0, HEAD.as_bytes())]);
        let at = at % (image.len() - 8);
        image[at..at + 8].copy_from_slice(&word.to_le_bytes());
        declared(&image.as_slice());
        let mut alone = inner;
        let at = at % (alone.len() - 8);
        alone[at..at + 8].copy_from_slice(&word.to_le_bytes());
        declared(&alone.as_slice());
    }

    #[test]
    fn a_declared_array_counts_in_full(
        count in 1u64..1 << 40,
        space in prop::sample::select(vec![".global", ".const", ".visible .global"]),
        (name, bytes) in prop::sample::select(vec![(".b8", 1), (".u16", 2), (".f32", 4), (".s64", 8)]),
        lanes in prop::sample::select(vec![("", 1), (".v2 ", 2), (".v4 ", 4)]),
        before in "[ \\n\\t]{0,5}",
    ) {
        let (vector, lanes) = lanes;
        let text = format!("{HEAD}{before}{space} .align 16 {vector}{name}{before} x[{count}];\0");
        let found = declared(&text.as_bytes());
        prop_assert!(found.is_whole);
        prop_assert!(found.bytes >= count * bytes * lanes);
        prop_assert!(found.bytes <= count * bytes * lanes + text.len() as u64);
    }

    #[test]
    fn a_text_that_was_cut_has_an_answer(end in 0usize..200, noise in "[ -~]{0,40}") {
        let text = format!("{HEAD}.global .b8 x[1000] = {{1, 2}}; {noise} .const .v2 .f32 y[2][3];\0");
        let cut = text.get(..end.min(text.len())).unwrap_or(&text);
        declared(&cut.as_bytes());
    }
}
