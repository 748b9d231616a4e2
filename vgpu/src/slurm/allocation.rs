//! What slurmctld has allocated to a job on one node, read from `scontrol --details show job`. Values in, values out.
//!
//! The text also has fields that the job's owner chose, such as its name, and these may hold line ends. So a second
//! line that looks like the allocation is never taken for it: the text is then refused.

/// A line of a job's allocation begins with this, for one node or several alike ones.
const LINE: &str = "     Nodes=";
/// Larger ranges of a list of nodes are not compared number by number, but by their bounds; longer lists are refused.
const LIST_MOST: usize = 64 << 10;

/// What a job has of this node's GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Allocation {
    /// No GPU.
    Nothing,
    /// Whole GPUs.
    Whole,
    /// Shards, by GPU.
    Shards(Vec<(u32, u64)>),
}

/// Why a text says nothing that can be relied on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unclear {
    /// No line is about this node.
    NoLine,
    /// Several lines are about this node.
    SeveralLines,
    /// The line has a form that is not known.
    Form(String),
    /// The shards are of several GPUs, and Slurm does not say how many of each.
    SeveralGpus(String),
}

impl std::fmt::Display for Unclear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoLine => write!(
                f,
                "scontrol --details show job has no line of this node's resources"
            ),
            Self::SeveralLines => write!(
                f,
                "scontrol --details show job has several lines that look like this node's resources; give the job a \
                 name, a comment and a command without line ends"
            ),
            Self::Form(text) => write!(
                f,
                "cannot read the job's resources GRES={text}; accepted: such as GRES=shard:2(IDX:0)"
            ),
            Self::SeveralGpus(text) => write!(
                f,
                "the job has shards of several GPUs ({text}), and Slurm does not say how many of each; ask for no \
                 more shards than one GPU has"
            ),
        }
    }
}

/// The job's allocation on this node, whose GPUs `gpus` slurmd says the job has something of.
pub(super) fn allocation(text: &str, node: &str, gpus: &[u32]) -> Result<Allocation, Unclear> {
    let mut found = None;
    for line in text.lines() {
        let Some(rest) = line.strip_prefix(LINE) else {
            continue;
        };
        let mut words = rest.split(' ');
        let nodes = words.next().unwrap_or_default();
        if nodes.len() > LIST_MOST || !is_in(node, nodes) {
            continue;
        }
        let gres = words
            .find_map(|word| word.strip_prefix("GRES="))
            .unwrap_or("");
        if found.replace(gres).is_some() {
            return Err(Unclear::SeveralLines);
        }
    }
    of_line(found.ok_or(Unclear::NoLine)?, gpus)
}

/// Reads `gpu:a100:1(IDX:0),shard:2(IDX:1)`, and the newer `shard:6(4/8,2/8)`.
fn of_line(gres: &str, gpus: &[u32]) -> Result<Allocation, Unclear> {
    let form = || Unclear::Form(gres.to_owned());
    let mut is_whole = false;
    let mut shards: Vec<(u32, u64)> = Vec::new();
    for item in items(gres) {
        let (head, places) = match item.split_once('(') {
            Some((head, places)) => (head, places.strip_suffix(')').ok_or_else(form)?),
            None => (item, ""),
        };
        let name = head.split(':').next().unwrap_or_default();
        is_whole |= name == "gpu";
        if name != "shard" {
            continue;
        }
        let count = head.rsplit(':').next().and_then(|text| text.parse().ok());
        let count: u64 = count.ok_or_else(form)?;
        let own = match places.strip_prefix("IDX:") {
            Some(list) => match numbers(list).ok_or_else(form)?.as_slice() {
                [one] => vec![(*one, count)],
                _ => return Err(Unclear::SeveralGpus(gres.to_owned())),
            },
            None => by_gpu(places, count).ok_or_else(form)?,
        };
        for (gpu, count) in own {
            if shards.iter().any(|(known, _)| *known == gpu) {
                return Err(form());
            }
            shards.push((gpu, count));
        }
    }
    if is_whole && !shards.is_empty() {
        return Err(form());
    }
    if shards.is_empty() {
        return match is_whole {
            true => Ok(Allocation::Whole),
            // slurmd was told of GPUs, so something of them is allocated.
            false if !gpus.is_empty() => Err(form()),
            false => Ok(Allocation::Nothing),
        };
    }
    shards.sort_unstable();
    // slurmd's list comes from the credential that slurmctld signed.
    let is_same = shards.iter().map(|(gpu, _)| *gpu).eq(gpus.iter().copied());
    if is_same {
        Ok(Allocation::Shards(shards))
    } else {
        Err(form())
    }
}

/// Splits at the commas outside of brackets.
fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |c: char| {
        match c {
            '(' | '[' => depth = depth.saturating_add(1),
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .filter(|item| !item.is_empty())
}

/// Numbers of a list such as `0-2,5`; at most as many as a node may have GPUs.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first > 4096 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Reads `4/8,0/8`: the shards of the job and of the GPU, one pair for each GPU.
fn by_gpu(places: &str, count: u64) -> Option<Vec<(u32, u64)>> {
    let mut all = Vec::new();
    let mut sum = 0_u64;
    for (gpu, pair) in (0..).zip(places.split(',')) {
        let (own, _) = pair.split_once('/')?;
        let own: u64 = own.parse().ok()?;
        sum = sum.checked_add(own)?;
        if own > 0 {
            all.push((gpu, own));
        }
    }
    (sum == count).then_some(all)
}

/// Whether a list of nodes such as `n[01-03,7],m1` names this node.
fn is_in(node: &str, list: &str) -> bool {
    items(list).any(|item| matches(node, item))
}

fn matches(node: &str, pattern: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('[') else {
        return node == pattern;
    };
    let Some((ranges, after)) = rest.split_once(']') else {
        return false;
    };
    let Some(left) = node.strip_prefix(before) else {
        return false;
    };
    ranges.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let digits = left.bytes().take_while(u8::is_ascii_digit).count();
        // A number is as wide as the range's first one, or wider without leading zeros.
        (first.len()..=digits).any(|width| {
            let (number, rest) = left.split_at(width);
            let is_plain = width == first.len() || !number.starts_with('0');
            let (Ok(first), Ok(last), Ok(number)) = (
                first.parse::<u64>(),
                last.parse::<u64>(),
                number.parse::<u64>(),
            ) else {
                return false;
            };
            is_plain && (first..=last).contains(&number) && matches(rest, after)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of `scontrol --details show job` of Slurm 22.05.8 that matters, with this line.
    fn text(name: &str, line: &str) -> String {
        format!(
            "JobId=3 JobName={name}\n   UserId=nobody(65534) GroupId=nogroup(65534) MCS_label=N/A\n   \
             JOB_GRES=shard:2\n{line}\n   MinCPUsNode=1\n   WorkDir=/tmp\n   TresPerNode=gres:shard:2\n"
        )
    }

    fn line(gres: &str) -> String {
        format!("     Nodes=n1 CPU_IDs=0 Mem=0 GRES={gres}")
    }

    fn of(gres: &str, gpus: &[u32]) -> Result<Allocation, Unclear> {
        allocation(&text("a", &line(gres)), "n1", gpus)
    }

    #[test]
    fn shards_and_whole_gpus_are_told_apart() {
        let shards = |list: &[(u32, u64)]| Ok(Allocation::Shards(list.to_vec()));
        assert_eq!(of("shard:2(IDX:0)", &[0]), shards(&[(0, 2)]));
        assert_eq!(of("shard:a100:3(IDX:1)", &[1]), shards(&[(1, 3)]));
        assert_eq!(
            of("shard:6(4/8,0/8,2/8)", &[0, 2]),
            shards(&[(0, 4), (2, 2)])
        );
        assert_eq!(of("nic:1,shard:2(IDX:0)", &[0]), shards(&[(0, 2)]));
        assert_eq!(
            of("gpu:a100:1(IDX:0),gpu:v100:1(IDX:1)", &[0, 1]),
            Ok(Allocation::Whole)
        );
        assert_eq!(of("gpu:2(IDX:0-1)", &[0, 1]), Ok(Allocation::Whole));
        assert_eq!(of("", &[]), Ok(Allocation::Nothing));
        assert_eq!(of("nic:1", &[]), Ok(Allocation::Nothing));
    }

    #[test]
    fn forms_that_are_not_known_are_refused() {
        for (gres, gpus) in [
            ("shard:2(IDX:0", &[0][..]),
            ("shard:x(IDX:0)", &[0]),
            ("shard:2(IDX:1)", &[0]),
            ("shard:2", &[0]),
            ("shard:2(1/4)", &[0]),
            ("shard:1(IDX:0),shard:1(IDX:0)", &[0]),
            ("gpu:1(IDX:0),shard:1(IDX:1)", &[0, 1]),
            ("", &[0]),
        ] {
            assert!(matches!(of(gres, gpus), Err(Unclear::Form(_))), "{gres}");
        }
        let several = of("shard:6(IDX:0-1)", &[0, 1]);
        assert!(
            matches!(several, Err(Unclear::SeveralGpus(_))),
            "{several:?}"
        );
    }

    #[test]
    fn a_jobs_name_cannot_pass_for_its_allocation() {
        let name = format!("a\n{}\nb", line("shard:4(IDX:0)"));

        let read = allocation(&text(&name, &line("shard:1(IDX:0)")), "n1", &[0]);

        assert_eq!(read, Err(Unclear::SeveralLines));
    }

    #[test]
    fn the_line_of_this_node_counts() {
        let lines = "     Nodes=n[01-03,7] CPU_IDs=0 Mem=0 GRES=shard:1(IDX:0)\n     Nodes=n04 CPU_IDs=0 Mem=0 \
                     GRES=shard:2(IDX:0)";
        let of = |node| allocation(&text("a", lines), node, &[0]);
        assert_eq!(of("n02"), Ok(Allocation::Shards(vec![(0, 1)])));
        assert_eq!(of("n04"), Ok(Allocation::Shards(vec![(0, 2)])));
        assert_eq!(of("n05"), Err(Unclear::NoLine));
    }

    #[test]
    fn lists_of_nodes_are_read_as_slurm_writes_them() {
        for (node, list, is) in [
            ("n1", "n1", true),
            ("n1", "n10", false),
            ("n10", "n[1-20]", true),
            ("n9", "n[08-10]", false),
            ("n09", "n[08-10]", true),
            ("n7", "m1,n[1-3,7]", true),
            ("r2n3", "r[1-2]n[1-4]", true),
            ("r3n3", "r[1-2]n[1-4]", false),
            ("n5-ib", "n[1-9]-ib", true),
            ("n5", "n[1-9", false),
            ("n", "n[]", false),
        ] {
            assert_eq!(is_in(node, list), is, "{node} in {list}");
        }
    }
}
