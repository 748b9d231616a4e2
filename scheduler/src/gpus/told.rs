//! A node agent's report: the few series of its `/metrics` that the GPU page shows. Text in, values out.
//!
//! An agent passes on what containers report about themselves, so no size or value is trusted: names are cut, lines are
//! counted, numbers are clamped.

use std::str::Chars;

/// The most samples of each kind that are read from one agent.
const MOST: usize = 4096;

/// The longest name that is kept, in bytes; Kubernetes allows no longer ones.
const NAME: usize = 253;

/// The report of one agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AgentReport {
    /// The use of each container, in the order in which the container numbers its devices.
    pub(crate) uses: Vec<Use>,
    /// How often each container was refused memory since it started.
    pub(crate) ooms: Vec<(Container, u64)>,
    /// Whole GPUs: the identifier, memory in use, and busy thousandths.
    pub(crate) gpus: Vec<(String, Option<u64>, Option<u32>)>,
}

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Container {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
}

/// A container's use of a GPU.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Use {
    pub(crate) of: Container,
    /// The identifier of the GPU, or of a MIG instance.
    pub(crate) device: String,
    /// Its number inside the container.
    pub(crate) index: u32,
    /// Memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Thousandths of the GPU; `None` if it is not measured.
    pub(crate) compute: Option<u32>,
}

/// Reads the text of a node agent's `/metrics`. Lines that cannot be parsed are skipped.
pub(crate) fn read(text: &str) -> AgentReport {
    let mut told = AgentReport::default();
    let mut fallback: Vec<(Container, String, f64)> = Vec::new();
    let mut compute: Vec<(Container, String, f64)> = Vec::new();
    for line in text.lines() {
        let Some((name, labels, value)) = sample(line) else {
            continue;
        };
        let of = || Container {
            namespace: label(&labels, "namespace"),
            pod: label(&labels, "pod"),
            container: label(&labels, "container"),
        };
        let device = || label(&labels, "device_uuid");
        match name {
            "hami_vgpu_memory_used_bytes" if told.uses.len() < MOST => told.uses.push(Use {
                of: of(),
                device: device(),
                index: label(&labels, "vdevice_index").parse().unwrap_or(u32::MAX),
                memory_bytes: whole(value),
                compute: None,
            }),
            "vgpu_container_compute_used_ratio" if compute.len() < MOST => {
                compute.push((of(), device(), value * 1000.0));
            }
            "hami_container_device_utilization_ratio" if fallback.len() < MOST => {
                fallback.push((of(), device(), value * 10.0));
            }
            "vgpu_container_oom_total" if told.ooms.len() < MOST => {
                told.ooms.push((of(), whole(value)));
            }
            "hami_host_gpu_memory_used_bytes" if told.gpus.len() < MOST => {
                told.gpus.push((device(), Some(whole(value)), None));
            }
            "hami_host_gpu_utilization_ratio" if told.gpus.len() < MOST => {
                told.gpus.push((device(), None, thousandths(value * 10.0)));
            }
            _ => {}
        }
    }
    // The arbiter's measurement is used if there is one, otherwise the driver's.
    for (of, device, value) in fallback.into_iter().chain(compute) {
        let same = |used: &&mut Use| used.of == of && used.device == device;
        if let Some(used) = told.uses.iter_mut().find(same) {
            used.compute = thousandths(value);
        }
    }
    told.gpus.sort_by(|a, b| a.0.cmp(&b.0));
    told.gpus.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            kept.1 = kept.1.or(next.1);
            kept.2 = kept.2.or(next.2);
        }
        same
    });
    told.uses.sort_by_key(|used| used.index);
    told
}

/// Names and values of labels.
type LabelPairs<'a> = Vec<(&'a str, String)>;

/// The name, labels and value of a sample; none for a comment and for a line that cannot be parsed.
fn sample(line: &str) -> Option<(&str, LabelPairs<'_>, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A time stamp may follow.
    let value = rest.split_whitespace().next()?.parse::<f64>().ok()?;
    value.is_finite().then_some((name, labels, value))
}

/// The labels up to the closing brace, and the text after it.
fn labels(mut rest: &str) -> Option<(LabelPairs<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut characters = quoted.chars();
        let value = unquoted(&mut characters)?;
        labels.push((name, value));
        rest = characters.as_str();
    }
}

/// The text up to the closing quotation mark; the mark is consumed.
fn unquoted(characters: &mut Chars<'_>) -> Option<String> {
    let mut text = String::new();
    loop {
        let next = match characters.next()? {
            '"' => return Some(text),
            '\\' => match characters.next()? {
                'n' => '\n',
                other => other,
            },
            other => other,
        };
        if text.len() + next.len_utf8() <= NAME {
            text.push(next);
        }
    }
}

fn label(labels: &[(&str, String)], name: &str) -> String {
    let found = labels.iter().find(|(of, _)| *of == name);
    found.map(|(_, value)| value.clone()).unwrap_or_default()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped before"
)]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e18) as u64
}

fn thousandths(value: f64) -> Option<u32> {
    u32::try_from(whole(value.round())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../../vgpu-monitor/tests/golden/present.prometheus.txt");
    const OPEN: &str = include_str!("../../../vgpu-monitor/tests/golden/present.openmetrics.txt");

    #[test]
    fn series_of_the_monitor_are_read() {
        let told = read(GOLDEN);

        let first = &told.uses[0];
        assert_eq!(
            (&*first.of.namespace, &*first.of.pod),
            ("research", "train-0")
        );
        assert_eq!(first.device, "GPU-00000000-1111-2222-3333-444444444444");
        assert_eq!(first.memory_bytes, 3_221_225_472);
        assert!(first.compute.is_some());
        assert_eq!(told.uses.len(), 3);
        assert_eq!(told.ooms[0].1, 1);
        assert_eq!(told.gpus.len(), 2);
        assert_eq!(
            (told.gpus[0].1, told.gpus[0].2),
            (Some(4_000_000_000), Some(630))
        );
    }

    #[test]
    fn both_formats_say_the_same() {
        assert_eq!(read(GOLDEN), read(OPEN));
    }

    #[test]
    fn quoted_and_broken_lines_do_no_harm() {
        let text = "vgpu_container_oom_total{namespace=\"a\\\"b\",pod=\"x\\\\y\\nz\",container=\"}\"} 7 123\n\
                    vgpu_container_oom_total{namespace=\"open 1\n\
                    vgpu_container_oom_total{namespace=\"a\"} NaN\n\
                    vgpu_container_oom_total -3\n\
                    {} 1\n\nhami_host_gpu_memory_used_bytes\n";

        let told = read(text);

        assert_eq!(told.ooms.len(), 2);
        assert_eq!(told.ooms[0].0.namespace, "a\"b");
        assert_eq!(told.ooms[0].0.pod, "x\\y\nz");
        assert_eq!((told.ooms[0].1, told.ooms[1].1), (7, 0));
    }

    #[test]
    fn long_names_and_many_lines_are_cut() {
        let long = "n".repeat(10_000);
        let line = format!("hami_vgpu_memory_used_bytes{{pod=\"{long}\"}} 1\n");

        let told = read(&line.repeat(5000));

        assert_eq!(told.uses.len(), MOST);
        assert_eq!(told.uses[0].of.pod.len(), NAME);
    }
}
