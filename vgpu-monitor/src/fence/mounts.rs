//! What is mounted where, in the text of `/proc/PID/mountinfo`: text in, places out. The kernel lets every user read
//! this file of every process, so this process needs no capability to find out which container a process belongs to.

use std::path::{Path, PathBuf};

/// A place in a file system: two paths in two mount namespaces that show it have the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file system's device, as the kernel writes it: `8:1`.
    pub device: String,
    /// The path within the file system.
    pub path: PathBuf,
}

/// Which place `path` shows in the namespace with these mounts.
#[must_use]
pub fn shown_at(mountinfo: &str, path: &Path) -> Option<Place> {
    let mounts = mountinfo.lines().filter_map(mount);
    // Of two mounts on one path the later one covers the other, and `max_by_key` answers the last of equals.
    let (place, at) = mounts
        .filter(|(_, at)| path.starts_with(at))
        .max_by_key(|(_, at)| at.components().count())?;
    let rest = path.strip_prefix(&at).ok()?;
    let path = match rest.as_os_str().is_empty() {
        true => place.path,
        false => place.path.join(rest),
    };
    Some(Place { path, ..place })
}

/// Which place is mounted at exactly this path.
#[must_use]
pub fn mounted_at(mountinfo: &str, path: &Path) -> Option<Place> {
    let mounts = mountinfo.lines().filter_map(mount);
    let mut at_path = mounts.filter(|(_, at)| at == path);
    at_path.next_back().map(|(place, _)| place)
}

/// A line's place, and where it is mounted.
fn mount(line: &str) -> Option<(Place, PathBuf)> {
    // id, parent, device, root, mount point, …
    let mut fields = line.split(' ').skip(2);
    let device = fields.next()?.to_owned();
    let path = plain(fields.next()?);
    let at = plain(fields.next()?);
    Some((Place { device, path }, at))
}

/// The kernel writes a space, a tabulator, a line end and a backslash as `\` and three octal digits.
fn plain(text: &str) -> PathBuf {
    let escapes = [
        (r"\040", " "),
        (r"\011", "\t"),
        (r"\012", "\n"),
        (r"\134", r"\"),
    ];
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escaped) = rest.split_at(at);
        plain.push_str(before);
        let known = escapes.iter().find(|(code, _)| escaped.starts_with(code));
        let (code, letter) = known.copied().unwrap_or((r"\", r"\"));
        plain.push_str(letter);
        rest = escaped.get(code.len()..).unwrap_or_default();
    }
    plain.push_str(rest);
    PathBuf::from(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:2 / /var/lib rw,relatime shared:2 - xfs /dev/sda2 rw
31 22 0:40 / /data\\040one rw - tmpfs tmpfs rw
";
    const CONTAINER: &str = "\
501 400 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/a:/b
510 501 8:2 /vgpu/containers/abc /etc/vgpu ro,relatime - xfs /dev/sda2 rw
511 501 8:2 /vgpu/containers/abc/region /run/vgpu/region rw - xfs /dev/sda2 rw
";

    fn place(device: &str, path: &str) -> Place {
        Place {
            device: device.to_owned(),
            path: path.into(),
        }
    }

    #[test]
    fn container_and_host_see_one_place() {
        let directory = Path::new("/var/lib/vgpu/containers/abc");
        let shown = shown_at(HOST, directory);

        assert_eq!(shown, Some(place("8:2", "/vgpu/containers/abc")));
        assert_eq!(mounted_at(CONTAINER, Path::new("/etc/vgpu")), shown);
        assert_eq!(mounted_at(CONTAINER, Path::new("/etc")), None);
        assert_eq!(mounted_at(HOST, Path::new("/etc/vgpu")), None);
        assert_eq!(
            shown_at(HOST, Path::new("/data one/x")),
            Some(place("0:40", "/x"))
        );
        assert_eq!(shown_at("", directory), None);
    }

    #[test]
    fn later_mount_covers_an_earlier_one() {
        let covered = format!("{CONTAINER}512 510 0:60 / /etc/vgpu rw - tmpfs tmpfs rw\n");

        assert_eq!(
            mounted_at(&covered, Path::new("/etc/vgpu")),
            Some(place("0:60", "/"))
        );
        assert_eq!(
            shown_at(&covered, Path::new("/etc/vgpu/limits")),
            Some(place("0:60", "/limits"))
        );
    }

    #[test]
    fn escaped_letters_are_read_as_they_are() {
        for (text, read) in [
            (r"/a\040b\134040c", r"/a b\040c"),
            (r"/tab\011end\012", "/tab\tend\n"),
            (r"/odd\9", r"/odd\9"),
            (r"/ends\", r"/ends\"),
        ] {
            assert_eq!(plain(text), Path::new(read), "{text}");
        }
    }
}
