//! Versions of the library, and which container has which.

use super::*;

#[test]
fn upgrade_keeps_libraries_in_use_and_removes_unused_ones() {
    let node = NodeDir::new();
    let old = node.delivery(Manner::Mounts);
    let (kept, _) = old.allot().unwrap();
    old.give(&kept, &given("train", 4 * GIB)).unwrap();
    let file = node.path(&format!("var/lib/vgpu/lib/{}/libvgpu.so", old.library()));
    let before = stamp(&file);
    assert_eq!(mode(&file), 0o444);

    node.write_library(b"two");
    let new = node.delivery(Manner::Cdi);
    assert_ne!(new.library(), old.library());
    new.give(&kept, &given("train", 4 * GIB)).unwrap();
    new.give(&name("b"), &given("other", GIB)).unwrap();
    assert_eq!(new.tidy().unwrap(), [""; 0].map(PathBuf::from));
    assert_eq!((node.libraries().len(), stamp(&file)), (2, before));
    let spec = std::fs::read_to_string(node.spec(&name("b"))).unwrap();
    assert!(spec.contains(new.library()) && !spec.contains(old.library()));

    new.remove(&kept).unwrap();
    assert_eq!(new.tidy().unwrap(), [file.parent().unwrap()]);
    assert_eq!(node.libraries(), [new.library()]);
    // The same again writes nothing.
    let file = node.path(&format!("var/lib/vgpu/lib/{}/libvgpu.so", new.library()));
    let before = stamp(&file);
    drop(node.delivery(Manner::Cdi));
    assert_eq!(stamp(&file), before);
}

#[test]
fn unloadable_library_is_never_delivered() {
    let node = NodeDir::new();
    std::fs::write(node.path("image/libvgpu.so"), "#!/bin/sh").unwrap();
    let error = Delivery::new(node.settings(Manner::Cdi))
        .unwrap_err()
        .to_string();
    assert!(error.contains("is not a 64-bit shared library"), "{error}");
    assert_eq!(node.libraries(), [""; 0]);

    // One that was changed where it lies is not trusted, and not touched.
    node.write_library(b"one");
    let version = node.delivery(Manner::Cdi).library().to_owned();
    let file = node.path(&format!("var/lib/vgpu/lib/{version}/libvgpu.so"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(&file, elf(b"xxx")).unwrap();
    let again = node.delivery(Manner::Cdi);
    assert_eq!(again.library(), format!("{version}-1"));
    assert_eq!(std::fs::read(&file).unwrap(), elf(b"xxx"));
}

#[test]
fn missing_library_is_replaced_or_refused_with_a_reason() {
    let node = NodeDir::new();
    let old = node.delivery(Manner::Mounts);
    let (mounted, _) = old.allot().unwrap();
    drop(old);
    node.delivery(Manner::Cdi)
        .give(&name("a"), &given("train", GIB))
        .unwrap();
    std::fs::remove_dir_all(node.path("var/lib/vgpu/lib")).unwrap();
    node.write_library(b"two");
    let new = node.delivery(Manner::Cdi);

    new.give(&name("a"), &given("train", GIB)).unwrap();
    assert!(
        std::fs::read_to_string(node.spec(&name("a")))
            .unwrap()
            .contains(new.library())
    );
    let error = new
        .give(&mounted, &given("other", GIB))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is gone from the node; delete the pod"),
        "{error}"
    );
}
