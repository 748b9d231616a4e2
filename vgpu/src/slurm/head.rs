//! The lines with which jobs begin in the answer of `scontrol show job`: `JobId=18 ArrayJobId=18 ArrayTaskId=3
//! JobName=sweep`. Values in, values out.
//!
//! Before `JobName=` a line has only what slurmctld writes. The job's owner chose the name, which may hold line ends and
//! more such lines. So where two lines begin the same job, the text is refused.

use super::allocation::Unclear;

const FIRST: &str = "JobId=";
const NAME: &str = "JobName=";
/// A longer name of a job is cut, characters.
const TITLE_MOST: usize = 128;

/// What slurmctld says first about a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JobHead {
    pub(super) id: u32,
    /// `18_3` for task 3 of the array 18.
    pub(super) array_task: Option<String>,
    /// `9+1` for part 1 of the heterogeneous job 9.
    part: Option<String>,
    /// The job's name, for people.
    pub(super) title: String,
}

/// The job that the text is about.
pub(super) fn first(text: &str) -> Option<JobHead> {
    head(text.lines().next()?)
}

/// The name by which `scontrol` has to be asked again, if the text is about several jobs: the first task of an array and
/// the first part of a heterogeneous job have the number of the whole. `None` if the text is about this job alone.
pub(super) fn narrower(text: &str, job: u32) -> Result<Option<String>, Unclear> {
    let heads: Vec<JobHead> = text.lines().filter_map(head).collect();
    let mut own = heads.iter().filter(|head| head.id == job);
    match (own.next(), own.next()) {
        (_, Some(_)) => Err(Unclear::SeveralLines),
        (Some(own), None) if heads.len() > 1 => {
            Ok(own.array_task.clone().or_else(|| own.part.clone()))
        }
        _ => Ok(None),
    }
}

fn head(line: &str) -> Option<JobHead> {
    let (id, rest) = line.strip_prefix(FIRST)?.split_once(' ')?;
    let (fields, title) = rest.split_once(NAME)?;
    let number = |key: &str| {
        let word = fields.split(' ').find_map(|word| word.strip_prefix(key))?;
        word.strip_prefix('=')?.parse::<u32>().ok()
    };
    let named = |whole: &str, sign: char, part: &str| {
        Some(format!("{}{sign}{}", number(whole)?, number(part)?))
    };
    let title = title.chars().filter(|c| !c.is_control());
    Some(JobHead {
        id: id.parse().ok()?,
        array_task: named("ArrayJobId", '_', "ArrayTaskId"),
        part: named("HetJobId", '+', "HetJobOffset"),
        title: title.take(TITLE_MOST).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jobs_name_is_shown_without_control_characters() {
        let of = |text: &str| first(text).unwrap_or_default().title;
        assert_eq!(of("JobId=3 JobName=my job\n   UserId=x"), "my job");
        assert_eq!(of("JobId=3 JobName=a\u{1b}[31mb"), "a[31mb");
        assert_eq!(
            of(&format!("JobId=3 JobName={}", "x".repeat(999))).len(),
            128
        );
        assert_eq!(of(""), "");
    }

    #[test]
    fn tasks_of_arrays_and_parts_of_jobs_have_names_of_their_own() {
        let task =
            first("JobId=21 ArrayJobId=18 ArrayTaskId=3 ArrayTaskThrottle=2 JobName=a\n").unwrap();
        assert_eq!((task.id, task.array_task.as_deref()), (21, Some("18_3")));
        let part = first("JobId=10 HetJobId=9 HetJobOffset=1 JobName=a ArrayJobId=1 ArrayTaskId=2")
            .unwrap();
        assert_eq!((part.array_task, part.part.as_deref()), (None, Some("9+1")));
        let waiting = first("JobId=4 ArrayJobId=4 ArrayTaskId=2-40%2 JobName=a").unwrap();
        assert_eq!(waiting.array_task, None);
        assert_eq!(first("   JobId=4 JobName=a"), None);
        assert_eq!(first("JobId=4"), None);
    }

    /// The answer of Slurm 22.05.8 about the array 18 while its last task, which has the number of the array, runs.
    const ARRAY: &str = "JobId=18 ArrayJobId=18 ArrayTaskId=3 JobName=a\n     Nodes=n1 GRES=shard:2(IDX:1)\n\n\
                         JobId=20 ArrayJobId=18 ArrayTaskId=1 JobName=a\n     Nodes=n1 GRES=shard:2(IDX:0)\n";

    #[test]
    fn an_answer_about_a_whole_array_is_asked_again_for_the_task() {
        assert_eq!(narrower(ARRAY, 18), Ok(Some(String::from("18_3"))));
        let one =
            "JobId=20 ArrayJobId=18 ArrayTaskId=1 JobName=a\n     Nodes=n1 GRES=shard:2(IDX:0)\n";
        assert_eq!(narrower(one, 20), Ok(None));
        let parts = "JobId=9 HetJobId=9 HetJobOffset=0 JobName=a\nJobId=10 HetJobId=9 HetJobOffset=1 JobName=a\n";
        assert_eq!(narrower(parts, 9), Ok(Some(String::from("9+0"))));
    }

    #[test]
    fn a_jobs_name_cannot_pass_for_another_task() {
        let name = "a\nJobId=18 ArrayJobId=18 ArrayTaskId=1 JobName=b";
        let text = ARRAY.replace("JobName=a", &format!("JobName={name}"));
        assert_eq!(narrower(&text, 18), Err(Unclear::SeveralLines));
        // A line of another job changes nothing: the allocation is then read from all of the text.
        let text = "JobId=7 JobName=a\nJobId=8 JobName=b\n     Nodes=n1 GRES=shard:1(IDX:0)\n";
        assert_eq!(narrower(text, 7), Ok(None));
    }
}
