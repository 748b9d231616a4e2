//! A job's share: what its shards are worth, lowered by its options. Values in, values out.

use supervisor::gpu::Gpu;
use vgpu_abi::size::Size;

use super::allocation::Allocation;
use super::job::JobOptions;
use crate::args::ComputeArgs;
use crate::failure::Misuse;
use crate::limits::{self, Shares, Wish};
use crate::values::{self, GpuRef, PerGpu};

/// Limits are whole MiB.
const MIB: u64 = 1 << 20;
/// The highest priority that a job's owner may choose: the usual one.
const PRIORITY_LEAST: u32 = 1;

/// Why a job has no share.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoShare {
    /// The job asks for what it cannot have. Its tasks do not start.
    Refused(String),
    /// The node and its configuration contradict each other. The prolog fails.
    Fault(String),
}

/// What a job may have of one GPU.
struct Most<'a> {
    gpu: &'a Gpu,
    bytes: u64,
    percent: u64,
    /// `4 of 16 shards`.
    words: String,
}

/// The share of a job; `None` for one that is not limited.
pub(super) fn share(
    allocation: &Allocation,
    job_gpus: &[u32],
    per_gpu: &PerGpu,
    asked: &JobOptions,
    gpus: &[Gpu],
) -> Result<Option<Shares>, NoShare> {
    let is_asking = asked.each().iter().any(|(_, value)| value.is_some());
    let most = match allocation {
        Allocation::Nothing if is_asking => {
            return Err(NoShare::Refused(String::from(
                "--gpumem, --gpucores and --gpupriority say how much of its GPU a job uses, and this job has none; ask \
                 for shards, such as --gres=shard:4",
            )));
        }
        Allocation::Nothing => return Ok(None),
        Allocation::Whole if !is_asking => return Ok(None),
        Allocation::Whole => {
            let whole = |index: &u32| {
                let gpu = find(gpus, *index)?;
                Ok(Most {
                    gpu,
                    bytes: gpu.memory_bytes,
                    percent: 100,
                    words: String::from("whole"),
                })
            };
            let all: Result<Vec<_>, NoShare> = job_gpus.iter().map(whole).collect();
            all?
        }
        Allocation::Shards(list) => {
            let part = |(index, count): &(u32, u64)| part(find(gpus, *index)?, *count, per_gpu);
            let all: Result<Vec<_>, NoShare> = list.iter().map(part).collect();
            all?
        }
    };
    let wish = wish(&most, asked).map_err(|error| NoShare::Refused(error.to_string()))?;
    let refs: Vec<_> = most
        .iter()
        .map(|most| GpuRef::Index(most.gpu.index))
        .collect();
    let fault = |error: Misuse| NoShare::Fault(error.to_string());
    limits::share(gpus, &refs, &wish, None)
        .map(Some)
        .map_err(fault)
}

fn find(gpus: &[Gpu], index: u32) -> Result<&Gpu, NoShare> {
    gpus.iter().find(|gpu| gpu.index == index).ok_or_else(|| {
        NoShare::Fault(format!(
            "Slurm has given the job GPU {index}, which the driver does not show; there are {} GPUs. The numbers of \
             gres.conf's GPUs have to be nvidia-smi's",
            gpus.len()
        ))
    })
}

fn part<'a>(gpu: &'a Gpu, count: u64, per_gpu: &PerGpu) -> Result<Most<'a>, NoShare> {
    let is = |wanted: &GpuRef| match wanted {
        GpuRef::Index(index) => *index == gpu.index,
        GpuRef::Uuid(uuid) => gpu.uuid.starts_with(uuid),
    };
    let all = match per_gpu {
        PerGpu::Each(all) => Some(*all),
        PerGpu::By(list) => list.iter().find(|(gpu, _)| is(gpu)).map(|(_, all)| *all),
    };
    let Some(all) = all else {
        return Err(NoShare::Fault(format!(
            "--shards does not name GPU {}; add {0}=NUMBER, the Count of its shards in gres.conf",
            gpu.index
        )));
    };
    if count == 0 || count > all {
        // Slurm 22.05 does this where GPUs have different numbers of shards and no Type. Any job may ask for it, so it
        // must not drain the node.
        return Err(NoShare::Refused(format!(
            "Slurm has given the job {count} shards of GPU {}, which has {all}; ask for at most {all}. The administrator \
             compares --shards of the prolog with gres.conf, which has to give GPUs with different numbers of shards a \
             Type each",
            gpu.index
        )));
    }
    let portion = |whole: u64| {
        let portion = u128::from(whole) * u128::from(count) / u128::from(all);
        u64::try_from(portion).unwrap_or(whole)
    };
    Ok(Most {
        gpu,
        bytes: portion(gpu.memory_bytes / MIB) * MIB,
        // The smallest share of time that there is; the shares of 200 jobs may add up to more than the GPU.
        percent: portion(100).max(1),
        words: format!("{count} of {all} shards"),
    })
}

/// The limits of the job, in the words of `vgpu run`; the error is what the job's owner reads.
fn wish(most: &[Most<'_>], asked: &JobOptions) -> Result<Wish, Misuse> {
    let memory = asked
        .gpumem
        .as_deref()
        .map(|text| one("--gpumem", text, values::gpu_mem));
    let memory = memory.transpose()?;
    let cores = asked
        .gpucores
        .as_deref()
        .map(|text| one("--gpucores", text, values::gpu_cores));
    let cores = cores.transpose()?;
    let priority = match asked.gpupriority.as_deref() {
        None => None,
        Some(text) => match values::priority(text) {
            Ok(priority) if priority >= PRIORITY_LEAST => Some(priority),
            _ => {
                return Err(Misuse::new(format!(
                    "--gpupriority: {text:?} is not accepted; accepted: {PRIORITY_LEAST} (the usual one) to {}, where \
                     a higher number runs later",
                    values::PRIORITY_MOST
                )));
            }
        },
    };
    let mut bytes = Vec::new();
    let mut percents = Vec::new();
    for most in most {
        let index = most.gpu.index;
        let gpu = || GpuRef::Index(index);
        if let Some(wanted) = memory.filter(|wanted| *wanted > most.bytes) {
            return Err(Misuse::new(format!(
                "--gpumem {} is more than {} of GPU {index} give, which are {} of {}; ask for more shards or for less \
                 memory",
                Size(wanted),
                most.words,
                Size(most.bytes),
                Size(most.gpu.memory_bytes)
            )));
        }
        if let Some(wanted) = cores.filter(|wanted| *wanted > most.percent) {
            return Err(Misuse::new(format!(
                "--gpucores {wanted} is more than {} of GPU {index} give, which are {} % of its time; ask for more \
                 shards or for less time",
                most.words, most.percent
            )));
        }
        bytes.push((gpu(), memory.unwrap_or(most.bytes)));
        percents.push((gpu(), cores.unwrap_or(most.percent)));
    }
    let compute = ComputeArgs {
        gpucores: vec![PerGpu::By(percents)],
        priority,
        ..ComputeArgs::default()
    };
    Wish::of(&[PerGpu::By(bytes)], &compute)
}

/// One value, for every GPU of the job.
fn one(
    flag: &str,
    text: &str,
    parse: fn(&str) -> Result<PerGpu, values::BadValue>,
) -> Result<u64, Misuse> {
    match parse(text) {
        Ok(PerGpu::Each(value)) => Ok(value),
        Ok(PerGpu::By(_)) => Err(Misuse::new(format!(
            "{flag}: {text:?} names a GPU; accepted: one value, which holds for each GPU of the job"
        ))),
        Err(error) => Err(Misuse::new(format!("{flag}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(index: u32, gib: u64) -> Gpu {
        Gpu {
            index,
            uuid: format!("GPU-{index}"),
            name: String::from("GPU"),
            memory_bytes: gib * GIB,
            used_bytes: 0,
            utilization_percent: None,
            memory_utilization_percent: None,
            instances: Vec::new(),
        }
    }

    fn asked(memory: &str, cores: &str, priority: &str) -> JobOptions {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        JobOptions {
            gpumem: some(memory),
            gpucores: some(cores),
            gpupriority: some(priority),
        }
    }

    fn of(count: u64, asked: &JobOptions) -> Result<Shares, NoShare> {
        let shards = Allocation::Shards(vec![(1, count)]);
        let gpus = [gpu(0, 80), gpu(1, 16)];
        share(&shards, &[1], &PerGpu::Each(16), asked, &gpus).map(Option::unwrap)
    }

    #[test]
    fn shards_are_a_part_of_memory_and_of_time() {
        let shares = of(4, &JobOptions::default()).unwrap();

        assert_eq!(shares.gpus.len(), 1);
        let share = &shares.gpus[0];
        assert_eq!((share.index, share.bytes), (1, 4 * GIB));
        assert_eq!(share.core_percent, 25);
        assert_eq!(shares.priority, 1);
    }

    #[test]
    fn gpus_of_different_sizes_have_their_own_shards() {
        let by = PerGpu::By(vec![(GpuRef::Index(0), 8), (GpuRef::Index(1), 2)]);
        let gpus = [gpu(0, 80), gpu(1, 16)];
        let shards = Allocation::Shards(vec![(0, 1), (1, 1)]);

        let shares = share(&shards, &[0, 1], &by, &JobOptions::default(), &gpus)
            .unwrap()
            .unwrap();

        let list: Vec<_> = shares
            .gpus
            .iter()
            .map(|s| (s.bytes / GIB, s.core_percent))
            .collect();
        assert_eq!(list, [(10, 12), (8, 50)]);
    }

    #[test]
    fn options_lower_a_share() {
        let shares = of(4, &asked("3Gi", "10", "9")).unwrap();

        assert_eq!(
            (shares.gpus[0].bytes, shares.gpus[0].core_percent),
            (3 * GIB, 10)
        );
        assert_eq!(shares.priority, 9);
    }

    #[test]
    fn options_never_raise_a_share() {
        for (options, part) in [
            (
                asked("5Gi", "", ""),
                "--gpumem 5Gi is more than 4 of 16 shards of GPU 1 give, which are 4Gi of 16Gi",
            ),
            (
                asked("", "26", ""),
                "--gpucores 26 is more than 4 of 16 shards of GPU 1 give, which are 25 %",
            ),
            (
                asked("", "", "0"),
                "--gpupriority: \"0\" is not accepted; accepted: 1 ",
            ),
            (asked("1=20Gi", "", ""), "names a GPU; accepted: one value"),
            (asked("x", "", ""), "--gpumem: "),
            (asked("", "0", ""), "--gpucores: "),
            (asked("", "", "-1"), "--gpupriority: "),
        ] {
            match of(4, &options) {
                Err(NoShare::Refused(text)) => assert!(text.contains(part), "{text}"),
                other => panic!("{options:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn more_shards_than_the_gpu_has_are_refused() {
        match of(17, &JobOptions::default()) {
            Err(NoShare::Refused(text)) => assert!(text.contains("ask for at most 16"), "{text}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_node_that_contradicts_its_configuration_is_at_fault() {
        for (shards, per_gpu, part) in [
            (
                (7, 1),
                PerGpu::Each(16),
                "GPU 7, which the driver does not show",
            ),
            (
                (1, 1),
                PerGpu::By(vec![(GpuRef::Index(0), 4)]),
                "--shards does not name GPU 1",
            ),
        ] {
            let shards = Allocation::Shards(vec![shards]);
            let gpus = [gpu(0, 80), gpu(1, 16)];
            match share(&shards, &[1], &per_gpu, &JobOptions::default(), &gpus) {
                Err(NoShare::Fault(text)) => assert!(text.contains(part), "{text}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_whole_gpu_is_limited_only_by_options() {
        let gpus = [gpu(0, 80)];
        let of = |options: &JobOptions| {
            share(&Allocation::Whole, &[0], &PerGpu::Each(16), options, &gpus)
        };

        assert_eq!(of(&JobOptions::default()), Ok(None));
        let shares = of(&asked("8Gi", "", "")).unwrap().unwrap();
        assert_eq!(
            (shares.gpus[0].bytes, shares.gpus[0].core_percent),
            (8 * GIB, 0)
        );
    }

    #[test]
    fn options_of_a_job_without_a_gpu_are_refused() {
        let of = |options: &JobOptions| {
            share(&Allocation::Nothing, &[], &PerGpu::Each(16), options, &[])
        };

        assert_eq!(of(&JobOptions::default()), Ok(None));
        assert!(matches!(
            of(&asked("1Gi", "", "")),
            Err(NoShare::Refused(_))
        ));
    }
}
