//! Imports of shared objects that their names tell apart or not, and processes that are checkpointed.

use crate::common::RegionDir;
use vgpu_abi::layout::MAX_SHARED;
use vgpu_abi::region::{Family, Kind, Region, ShareError, SharedKey};

fn charged(region: &Region, bytes: u64) {
    let charge = region.reserve(0, bytes, 1000).unwrap();
    region.confirm(charge, Kind::Buffer);
}

/// An object of this many bytes, exported without a name that tells it apart.
fn unnamed(region: &Region, bytes: u64) -> SharedKey {
    charged(region, bytes);
    region
        .share_as(Family::DESCRIPTOR, None, 0, bytes, Kind::Buffer)
        .unwrap()
}

#[test]
fn an_import_without_a_name_holds_all_that_it_may_be() {
    let place = RegionDir::new();
    let region = Region::open(&place.path()).unwrap();
    let first = unnamed(&region, 60);
    let second = unnamed(&region, 30);
    assert_ne!(first, second);

    let import = region.begin_import(Family::DESCRIPTOR, None).unwrap();
    let later = unnamed(&region, 5);
    for key in [first, second, later] {
        region.unhold(key).unwrap();
    }
    assert_eq!((import.objects, region.used(0)), (2, 90));

    region.end_import(&import).unwrap();
    assert_eq!(region.used(0), 0);
}

#[test]
fn import_skips_memory_of_other_kinds_and_too_small_pieces() {
    let place = RegionDir::new();
    let region = Region::open(&place.path()).unwrap();
    let large = unnamed(&region, 60);
    let small = unnamed(&region, 30);
    let other = region.begin_import(Family::FABRIC, None).unwrap();
    assert_eq!(other.objects, 0);

    let import = region.begin_import(Family::DESCRIPTOR, None).unwrap();
    let import = region.narrow_import(import, 31);
    region.unhold(large).unwrap();
    region.unhold(small).unwrap();
    assert_eq!((import.objects, region.used(0)), (1, 60));

    region.end_import(&import).unwrap();
    region.end_import(&other).unwrap();
    assert_eq!(region.used(0), 0);
}

#[test]
fn an_import_with_a_name_holds_that_and_what_has_none() {
    let place = RegionDir::new();
    let region = Region::open(&place.path()).unwrap();
    let name = SharedKey([7, 7]);
    charged(&region, 10);
    charged(&region, 20);
    let named = |bytes| region.share_as(Family::IPC, Some(name), 0, bytes, Kind::Buffer);
    assert_eq!(named(10), Ok(name));
    // The name is taken: this one gets a name of ours.
    let second = named(20).unwrap();
    assert_ne!(second, name);

    let import = region.begin_import(Family::IPC, Some(name)).unwrap();
    region.unhold(name).unwrap();
    region.unhold(second).unwrap();
    assert_eq!((import.objects, region.used(0)), (2, 30));

    region.end_import(&import).unwrap();
    assert_eq!(region.used(0), 0);
}

#[test]
fn a_name_that_is_in_no_books_holds_all_of_its_family() {
    let place = RegionDir::new();
    let region = Region::open(&place.path()).unwrap();
    charged(&region, 10);
    let name = SharedKey([7, 7]);
    region
        .share_as(Family::IPC, Some(name), 0, 10, Kind::Buffer)
        .unwrap();

    let import = region
        .begin_import(Family::IPC, Some(SharedKey([9, 9])))
        .unwrap();
    region.unhold(name).unwrap();

    assert_eq!((import.name, import.objects, region.used(0)), (None, 1, 10));
    region.end_import(&import).unwrap();
    assert_eq!(region.used(0), 0);
}

#[test]
fn a_full_table_says_so_before_anything_is_shared() {
    let place = RegionDir::new();
    let region = Region::open(&place.path()).unwrap();
    assert!(region.can_share());
    for _ in 0..MAX_SHARED {
        region
            .share_as(Family::DESCRIPTOR, None, 0, 0, Kind::Buffer)
            .unwrap();
    }

    assert!(!region.can_share());
    let refused = region.share_as(Family::DESCRIPTOR, None, 0, 0, Kind::Buffer);
    assert_eq!(refused, Err(ShareError::TableFull));
}

#[test]
fn charges_taken_off_by_a_checkpoint_come_back() {
    let place = RegionDir::new();
    let region = Region::open(&place.path()).unwrap();
    charged(&region, 60);
    let me = region.process(std::process::id()).unwrap();
    assert_eq!(region.process(0x7fff_fff0), None);

    region.put_away(&me);
    assert_eq!((region.used(0), region.away(&me, 0)), (0, 60));
    // Twice is once.
    region.put_away(&me);
    assert_eq!((region.used(0), region.away(&me, 0)), (0, 60));

    region.bring_back(&me, 0, 0);
    region.bring_back(&me, 0, 0);
    assert_eq!((region.used(0), region.away(&me, 0)), (60, 0));
}

#[test]
fn another_owner_of_the_slot_brings_nothing_back() {
    let place = RegionDir::new();
    let region = Region::open(&place.path()).unwrap();
    charged(&region, 60);
    let me = region.process(std::process::id()).unwrap();
    region.put_away(&me);
    let mut next = me;
    next.generation += 1;

    region.bring_back(&next, 0, 0);

    assert_eq!((region.away(&next, 0), region.used(0)), (0, 0));
}
