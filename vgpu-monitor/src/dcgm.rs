//! Files in which dcgm-exporter reads which containers are on each GPU: its mapping of jobs
//! (`--hpc-job-mapping-dir`). Each file has the number of a GPU as its name and a job in each line; dcgm-exporter
//! puts the job into the label `hpc_job` of the GPU's series.
//!
//! By itself dcgm-exporter knows the pods of a GPU from the kubelet's device ids, and ours name no GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use supervisor::gpu::hardware::Hardware;

use crate::exporter::ShownContainer;

/// The lines of each GPU's file, by the number of the GPU; empty for one without containers.
#[must_use]
pub fn jobs(gpus: &[Hardware], containers: &[ShownContainer]) -> BTreeMap<u32, BTreeSet<String>> {
    let mut jobs: BTreeMap<u32, BTreeSet<String>> = gpus
        .iter()
        .map(|gpu| (gpu.index, BTreeSet::new()))
        .collect();
    for container in containers {
        for device in &container.devices {
            let on = gpus.iter().find(|gpu| gpu.uuid == device.uuid);
            if let Some(lines) = on.and_then(|gpu| jobs.get_mut(&gpu.index)) {
                lines.insert(name(container));
            }
        }
    }
    jobs
}

/// `NAMESPACE/POD/CONTAINER`; under `vgpu run` the run's name.
fn name(container: &ShownContainer) -> String {
    let parts = [&container.namespace, &container.pod, &container.container];
    let parts: Vec<&str> = parts
        .into_iter()
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    // A line is a job.
    parts.join("/").replace(['\n', '\r'], "?")
}

/// Makes the directory's files say just this. A file is replaced as a whole.
///
/// # Errors
/// The directory or a file cannot be written.
pub fn write(directory: &Path, jobs: &BTreeMap<u32, BTreeSet<String>>) -> io::Result<()> {
    for (index, lines) in jobs {
        let path = directory.join(index.to_string());
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        if std::fs::read(&path).is_ok_and(|is| is == text.as_bytes()) {
            continue;
        }
        // dcgm-exporter leaves files alone whose names are no numbers.
        let next = directory.join(format!(".{index}.next"));
        std::fs::write(&next, text)?;
        std::fs::rename(&next, &path)?;
    }
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let index = name.to_str().and_then(|name| name.parse::<u32>().ok());
        // A GPU that is gone.
        if index.is_some_and(|index| !jobs.contains_key(&index)) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::Device;

    fn gpu(index: u32) -> Hardware {
        Hardware {
            index,
            uuid: format!("GPU-{index}"),
            ..Hardware::default()
        }
    }

    fn container(pod: &str, gpus: &[u32]) -> ShownContainer {
        ShownContainer {
            namespace: "research".to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
            devices: gpus
                .iter()
                .map(|index| Device {
                    uuid: format!("GPU-{index}"),
                    ..Device::default()
                })
                .collect(),
            ..ShownContainer::default()
        }
    }

    #[test]
    fn each_gpus_file_names_its_containers() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name));
        let run = ShownContainer {
            container: "a\nb".to_owned(),
            ..container("", &[1])
        };
        let run = ShownContainer {
            namespace: String::new(),
            ..run
        };
        std::fs::write(folder.path().join("7"), "left by a GPU that is gone\n").unwrap();
        std::fs::write(folder.path().join("README"), "a person's\n").unwrap();
        let all = [container("b", &[0, 1]), container("a", &[0]), run];

        write(folder.path(), &jobs(&[gpu(0), gpu(1), gpu(2)], &all)).unwrap();

        assert_eq!(read("0").unwrap(), "research/a/main\nresearch/b/main\n");
        assert_eq!(read("1").unwrap(), "a?b\nresearch/b/main\n");
        assert_eq!(read("2").unwrap(), "");
        assert!(read("7").is_err());
        assert!(read("README").is_ok());

        write(folder.path(), &jobs(&[gpu(0)], &[])).unwrap();
        assert_eq!(read("0").unwrap(), "");
        assert!(read("1").is_err());
    }
}
