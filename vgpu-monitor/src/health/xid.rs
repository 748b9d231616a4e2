//! The meanings of XIDs: a table of data, and which of them the operator switched off or on. Never judges a GPU.
//!
//! Sources: NVIDIA's "Xid Errors" guide with its catalog (docs.nvidia.com/deploy/xid-errors: description and immediate
//! action of each), NVIDIA's guide on row remapping and page retirement (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt
//! and dynamic-page-retirement), and the XIDs that NVIDIA's device plugin ignores as application errors (13, 31, 43, 45,
//! 68, 109). Where the guide restarts the application, the GPU is well; where it resets the GPU or calls for
//! support, it is not.

use std::collections::BTreeMap;

/// The side whose fault an XID is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A program's: the GPU is well.
    Application,
    /// The GPU's, its links' or its memory's.
    Hardware,
    /// The driver's or its firmware's: it often passes.
    Transient,
}

impl Class {
    /// As a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Hardware => "hardware",
            Self::Transient => "transient",
        }
    }
}

/// How long a GPU counts as unhealthy after an XID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// Not at all: it is said and counted.
    Never,
    /// Until a probe finds nothing and it has been quiet for a short time.
    Quiet,
    /// Until a probe finds nothing and it has been quiet for a long time.
    LongQuiet,
    /// Until the GPU was reset: it left and came back, or the driver was loaded again.
    Reset,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// Its number.
    pub number: u64,
    /// The side whose fault it is.
    pub class: Class,
    /// How long a GPU counts as unhealthy after this XID.
    pub until: Until,
    /// The event in words.
    pub meaning: &'static str,
    /// The advice for the operator.
    pub cure: &'static str,
}

use Class::{Application, Hardware, Transient};
use Until::{LongQuiet, Never, Quiet, Reset};

const PROGRAM: &str = "look at the program that ran here (compute-sanitizer finds bad accesses); the GPU needs nothing";
const RESTARTED: &str = "restart the program; the GPU needs nothing";
const WAIT: &str = "none if it does not come back; else reset the GPU and look for a newer driver";
const RESET: &str =
    "drain the GPU and reset it (nvidia-smi --gpu-reset), or reboot; replace it if it comes back";
const REPLACE: &str = "drain the GPU, run its diagnostics (dcgmi diag -r 3) and have it replaced";
const LINK: &str = "reset the GPU; look at the NVLink bridge, cable or switch if it comes back";
const BUS: &str = "look at power, riser and slot; reboot; replace the GPU if it comes back";

const fn row(
    number: u64,
    class: Class,
    until: Until,
    meaning: &'static str,
    cure: &'static str,
) -> Xid {
    Xid {
        number,
        class,
        until,
        meaning,
        cure,
    }
}

/// By number.
pub const TABLE: &[Xid] = &[
    row(
        8,
        Application,
        Never,
        "a program's work did not end in time",
        RESTARTED,
    ),
    row(
        11,
        Application,
        Never,
        "a program's command stream is damaged",
        PROGRAM,
    ),
    row(
        13,
        Application,
        Never,
        "a kernel did what the graphics engine does not allow (bad access, bad instruction)",
        PROGRAM,
    ),
    row(
        31,
        Application,
        Never,
        "a program accessed memory that is not its own (page fault)",
        PROGRAM,
    ),
    row(
        32,
        Transient,
        Quiet,
        "a command stream reached the GPU damaged",
        WAIT,
    ),
    row(
        37,
        Application,
        Never,
        "the driver was asked for what it does not do",
        RESTARTED,
    ),
    row(38, Transient, Quiet, "the driver's firmware failed", WAIT),
    row(
        43,
        Application,
        Never,
        "a program's work was stopped after a fault of its own",
        RESTARTED,
    ),
    row(
        44,
        Transient,
        Quiet,
        "a fault while the GPU changed from one program to another",
        WAIT,
    ),
    row(
        45,
        Application,
        Never,
        "a program's work was taken off the GPU after an earlier fault or its end",
        RESTARTED,
    ),
    row(
        46,
        Hardware,
        LongQuiet,
        "the GPU stopped answering for a time",
        RESET,
    ),
    row(
        48,
        Hardware,
        LongQuiet,
        "a memory error of two bits that cannot be corrected (ECC)",
        RESET,
    ),
    row(
        54,
        Hardware,
        Reset,
        "a power cable of the GPU is not connected",
        BUS,
    ),
    row(56, Transient, Quiet, "the display engine failed", WAIT),
    row(
        57,
        Hardware,
        LongQuiet,
        "the GPU's memory could not be set up",
        RESET,
    ),
    row(
        58,
        Hardware,
        LongQuiet,
        "the GPU's memory is not stable",
        REPLACE,
    ),
    row(
        60,
        Application,
        Never,
        "the video processor was given what it does not take",
        PROGRAM,
    ),
    row(
        61,
        Hardware,
        LongQuiet,
        "the GPU's micro-controller gave a warning",
        RESET,
    ),
    row(
        62,
        Hardware,
        Reset,
        "the GPU's micro-controller halted",
        RESET,
    ),
    row(
        63,
        Hardware,
        Never,
        "a memory row or page is to be replaced (recorded; done at the next reset)",
        "none now; drain and reset the GPU when convenient",
    ),
    row(
        64,
        Hardware,
        Reset,
        "a memory row or page could not be replaced",
        REPLACE,
    ),
    row(65, Transient, Quiet, "the video processor failed", WAIT),
    row(
        66,
        Application,
        Never,
        "the driver was used in a way that is not allowed",
        RESTARTED,
    ),
    row(
        67,
        Application,
        Never,
        "the driver was used in a way that is not allowed",
        RESTARTED,
    ),
    row(
        68,
        Application,
        Never,
        "the video decoder was given what it does not take",
        PROGRAM,
    ),
    row(
        69,
        Application,
        Never,
        "a program used a graphics class that is not there",
        PROGRAM,
    ),
    row(74, Hardware, LongQuiet, "an NVLink failed", LINK),
    row(
        78,
        Transient,
        Quiet,
        "a virtual GPU could not be started",
        WAIT,
    ),
    row(79, Hardware, Reset, "the GPU has fallen off the bus", BUS),
    row(
        80,
        Transient,
        Quiet,
        "damaged data was sent to the GPU",
        WAIT,
    ),
    row(
        81,
        Hardware,
        LongQuiet,
        "the VGA part of the GPU failed",
        RESET,
    ),
    row(
        82,
        Application,
        Never,
        "the JPEG decoder was given what it does not take",
        PROGRAM,
    ),
    row(
        88,
        Application,
        Never,
        "the video decoder was given what it does not take",
        PROGRAM,
    ),
    row(
        92,
        Hardware,
        LongQuiet,
        "memory errors of single bits are frequent",
        REPLACE,
    ),
    row(
        93,
        Hardware,
        Never,
        "the GPU's settings memory is written too often",
        "none now; tell the vendor if it comes back",
    ),
    row(
        94,
        Hardware,
        LongQuiet,
        "a memory error that cannot be corrected was contained: only the program that met it is lost",
        "restart that program; drain and reset the GPU when convenient",
    ),
    row(
        95,
        Hardware,
        Reset,
        "a memory error that cannot be corrected was not contained: every program of the GPU may have wrong data",
        RESET,
    ),
    row(
        109,
        Application,
        Never,
        "a program did not leave the GPU in time when it was another's turn",
        RESTARTED,
    ),
    row(110, Hardware, Reset, "a security fault of the GPU", RESET),
    row(
        119,
        Transient,
        Quiet,
        "the GPU's system processor (GSP) did not answer in time",
        WAIT,
    ),
    row(
        120,
        Transient,
        Quiet,
        "the GPU's system processor (GSP) failed",
        WAIT,
    ),
    row(
        121,
        Hardware,
        Never,
        "an error on the link to the CPU (C2C) was corrected",
        "none if it is rare; reset the GPU when convenient",
    ),
    row(
        122,
        Hardware,
        LongQuiet,
        "the GPU's settings memory could not be read",
        RESET,
    ),
    row(
        123,
        Hardware,
        LongQuiet,
        "the GPU's settings memory could not be written",
        RESET,
    ),
    row(
        136,
        Hardware,
        LongQuiet,
        "a link could not be trained",
        LINK,
    ),
    row(
        137,
        Application,
        Never,
        "a program accessed another GPU's memory that is not its own",
        PROGRAM,
    ),
    row(
        140,
        Hardware,
        Reset,
        "a memory error that cannot be corrected stopped the GPU",
        RESET,
    ),
    row(143, Hardware, Reset, "the GPU could not be started", RESET),
    row(
        144,
        Hardware,
        LongQuiet,
        "an NVLink failed (serial part)",
        LINK,
    ),
    row(
        145,
        Hardware,
        LongQuiet,
        "an NVLink failed (link layer)",
        LINK,
    ),
    row(
        146,
        Hardware,
        LongQuiet,
        "an NVLink failed (transport)",
        LINK,
    ),
    row(
        147,
        Hardware,
        LongQuiet,
        "an NVLink failed (transport)",
        LINK,
    ),
    row(
        148,
        Hardware,
        LongQuiet,
        "an NVLink failed (network layer)",
        LINK,
    ),
    row(
        149,
        Hardware,
        LongQuiet,
        "an NVLink failed (network layer)",
        LINK,
    ),
    row(150, Hardware, LongQuiet, "an NVLink failed", LINK),
    row(
        154,
        Hardware,
        Never,
        "the driver says that the GPU wants something done",
        "nvidia-smi -q says what under \"GPU Recovery Action\"; the XID before this one says why",
    ),
    row(155, Hardware, LongQuiet, "an NVLink is down", LINK),
    row(
        156,
        Hardware,
        Never,
        "a part of the GPU is to be retired (recorded; done at the next reset)",
        "none now; drain and reset the GPU when convenient",
    ),
    row(
        157,
        Hardware,
        Reset,
        "a part of the GPU could not be retired",
        REPLACE,
    ),
    row(158, Hardware, Reset, "a fatal time-out of the GPU", RESET),
];

/// The row of an XID. An XID without a row makes a GPU sick until a probe and a long quiet time say
/// otherwise; the reference takes such a GPU out for ever.
#[must_use]
pub fn of(number: u64) -> Xid {
    TABLE
        .iter()
        .find(|xid| xid.number == number)
        .copied()
        .unwrap_or(Xid {
            number,
            class: Hardware,
            until: LongQuiet,
            meaning: "an error that is not in our table",
            cure: "look it up in NVIDIA's Xid guide; reset the GPU if it comes back",
        })
}

/// Which XIDs count, as the reference's two variables say: `DP_DISABLE_HEALTHCHECKS` (numbers, or `all` or `xids` for
/// every check) and `DP_ENABLE_HEALTHCHECKS` (numbers that count in spite of that, and in spite of being an
/// application's).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checks {
    none: bool,
    all: bool,
    named: BTreeMap<u64, bool>,
}

impl Checks {
    /// From the two variables' texts. A word that is no number is left out, as the reference does.
    #[must_use]
    pub fn parse(disable: &str, enable: &str) -> Self {
        let words = |text: &str| -> Vec<String> {
            text.to_lowercase()
                .split(',')
                .map(|word| word.trim().to_owned())
                .filter(|word| !word.is_empty())
                .collect()
        };
        let is_all = |word: &String| word == "all" || word == "xids";
        let (disable, enable) = (words(disable), words(enable));
        let mut checks = Self {
            none: disable.iter().any(is_all),
            all: enable.iter().any(is_all),
            named: BTreeMap::new(),
        };
        let numbers = |words: &[String]| -> Vec<u64> {
            words.iter().filter_map(|word| word.parse().ok()).collect()
        };
        for number in numbers(&disable) {
            checks.named.insert(number, false);
        }
        for number in numbers(&enable) {
            checks.named.insert(number, true);
        }
        checks
    }

    /// Whether any check makes a GPU sick.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.none && !self.all && !self.named.values().any(|on| *on)
    }

    /// How long a GPU is sick of this one.
    #[must_use]
    pub fn until(&self, xid: &Xid) -> Until {
        let on = self.named.get(&xid.number).copied();
        match on {
            Some(false) => Never,
            // An operator that names an application's error wants what the reference does: the GPU is taken
            // out.
            Some(true) => xid.until.max(Quiet),
            None if self.none && !self.all => Never,
            None => xid.until,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xid_table_is_sorted_without_duplicates() {
        assert!(TABLE.windows(2).all(|pair| pair[0].number < pair[1].number));
        for xid in TABLE {
            assert!(!xid.meaning.is_empty() && !xid.cure.is_empty());
            let number = xid.number;
            assert!(xid.class != Application || xid.until == Never, "{number}");
            assert!(xid.class != Transient || xid.until == Quiet, "{number}");
        }
    }

    #[test]
    fn xids_the_reference_ignores_are_applications() {
        for number in [13, 31, 43, 45, 68, 109] {
            assert_eq!(of(number).class, Application, "{number}");
        }
        for number in [48, 62, 64, 74, 79, 92, 94, 95] {
            let xid = of(number);
            assert_eq!(xid.class, Hardware, "{number}");
            assert_ne!(xid.until, Never, "{number}");
        }
        assert_eq!(of(999_999).until, LongQuiet);
    }

    #[test]
    fn reference_variables_select_the_xids_that_count() {
        let until = |disable: &str, enable: &str, number: u64| {
            Checks::parse(disable, enable).until(&of(number))
        };
        assert_eq!(until("", "", 79), Reset);
        assert_eq!(until("79, 48", "", 79), Never);
        assert_eq!(until("79, 48", "", 62), Reset);
        assert_eq!(until("", "31", 31), Quiet);
        assert_eq!(until("all", "", 79), Never);
        assert_eq!(until("XIDs", "79", 79), Reset);
        assert_eq!(until("xids", "79", 48), Never);
        assert_eq!(until("79", "79", 79), Reset);
        assert_eq!(until("nonsense,,-1", "", 79), Reset);
        assert!(Checks::parse("all", "").is_off());
        assert!(!Checks::parse("all", "48").is_off());
        assert!(!Checks::parse("48", "").is_off());
    }
}
