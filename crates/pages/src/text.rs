//! Numbers in the form that people read. Values in, text out.

/// Bytes in GiB or MiB: `80 GiB`, `19.5 GiB`, `512 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    if bytes >= GIB {
        format!("{} GiB", tenths(bytes, GIB))
    } else if bytes >= MIB || bytes == 0 {
        format!("{} MiB", tenths(bytes, MIB))
    } else {
        format!("{bytes} B")
    }
}

/// `bytes` in units of `unit`, rounded to a tenth, without a trailing `.0`.
fn tenths(bytes: u64, unit: u64) -> String {
    let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        part => format!("{}.{part}", tenths / 10),
    }
}

/// Thousandths as a decimal number: `2500` is `2.5`.
pub(crate) fn milli(milli: i128) -> String {
    let sign = if milli < 0 { "-" } else { "" };
    let magnitude = milli.unsigned_abs();
    let fraction = format!("{:03}", magnitude % 1000);
    let fraction = fraction.trim_end_matches('0');
    let whole = magnitude / 1000;
    if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

/// An amount of this resource, in thousandths, in its usual unit.
pub(crate) fn amount(resource: &str, thousandths: i128) -> String {
    if matches!(resource, "memory" | "ephemeral-storage") || resource.starts_with("hugepages-") {
        let whole = thousandths.max(0) / 1000;
        bytes(u64::try_from(whole).unwrap_or(u64::MAX))
    } else {
        milli(thousandths)
    }
}

/// `part` as a percentage of `whole`; at most 999, and 0 if the whole is 0.
pub(crate) fn percent(part: u128, whole: u128) -> u16 {
    if whole == 0 {
        return 0;
    }
    let percent = (part.saturating_mul(100) + whole / 2) / whole;
    u16::try_from(percent.min(999)).unwrap_or(999)
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, one: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {one}{end}")
}

/// A model without the vendor's name, which a driver and HAMi's registration each put in front.
pub(crate) fn model(name: &str) -> &str {
    let name = name.strip_prefix("NVIDIA-").unwrap_or(name);
    name.strip_prefix("NVIDIA ").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_a_person_writes_them() {
        assert_eq!(bytes(80 << 30), "80 GiB");
        assert_eq!(bytes(20_000 << 20), "19.5 GiB");
        assert_eq!(bytes(512 << 20), "512 MiB");
        assert_eq!(bytes(0), "0 MiB");
        assert_eq!(milli(2500), "2.5");
        assert_eq!(milli(4000), "4");
        assert_eq!(milli(-50), "-0.05");
        assert_eq!(amount("memory", (1 << 30) * 1000), "1 GiB");
        assert_eq!(amount("nvidia.com/gpu", 2000), "2");
        assert_eq!(percent(1, 3), 33);
        assert_eq!(percent(1, 0), 0);
        assert_eq!(percent(u128::MAX, 1), 999);
    }

    #[test]
    fn a_model_is_said_without_its_vendor() {
        let said = [
            "NVIDIA-NVIDIA A100-SXM4-80GB",
            "NVIDIA A100",
            "NVIDIA-Tesla T4",
            "K100-64GB",
        ];

        assert_eq!(
            said.map(model),
            ["A100-SXM4-80GB", "A100", "Tesla T4", "K100-64GB"]
        );
    }
}
