//! Which release of Slurm has loaded the plugin. Slurm loads a SPANK plugin only if the plugin names the same release
//! (year and month); one file that serves every release has to find out. Values in, values out.

/// No release: Slurm then refuses the plugin, and says that it is incompatible.
pub(crate) const UNKNOWN: u32 = 0;
/// The API of 22.05, the first release that is known here.
const API_OF_22_05: u32 = 38;

/// A release as Slurm writes it in `plugin_version`.
const fn number(year: u32, month: u32) -> u32 {
    (year << 16) | (month << 8)
}

/// The release of Slurm that answers this number to `slurm_api_version`. Each release has the next API number. Up to
/// 23.11 a release came out every nine months, and since then every six.
pub(crate) fn of_api(version: i64) -> Option<u32> {
    let api = u32::try_from(version >> 16).ok()?;
    let since = api.checked_sub(API_OF_22_05)?;
    match since {
        0 => Some(number(22, 5)),
        1 => Some(number(23, 2)),
        // 23.11, 24.05, 24.11, 25.05, …
        2..=200 => {
            let halves = since - 2;
            let year = 23 + halves.div_ceil(2);
            Some(number(year, if halves.is_multiple_of(2) { 11 } else { 5 }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_api_is_of_one_release() {
        for (api, year, month) in [
            (38, 22, 5),
            (39, 23, 2),
            (40, 23, 11),
            (41, 24, 5),
            (42, 24, 11),
            (43, 25, 5),
            (44, 25, 11),
        ] {
            assert_eq!(of_api(api << 16), Some(number(year, month)), "{api}");
        }
        for unknown in [37 << 16, 0, -1, i64::MAX] {
            assert_eq!(of_api(unknown), None);
        }
    }
}
