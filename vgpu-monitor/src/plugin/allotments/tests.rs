use super::*;

fn name(number: usize) -> Name {
    Name(format!("v{number}"))
}

fn ids(numbers: &[usize]) -> Vec<String> {
    numbers
        .iter()
        .map(|number| format!("vgpu-{number}"))
        .collect()
}

fn recipient(uid: &str, pod: &str) -> Recipient {
    Recipient {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        pod: pod.to_owned(),
        container: "main".to_owned(),
        kind: "app".to_owned(),
        vendor: "NVIDIA".to_owned(),
        shares: vec![GpuShare {
            gpu: "GPU-0".to_owned(),
            memory_bytes: 1 << 30,
            physical_bytes: 1 << 34,
            cores: 10,
            slots: 1,
            instance: None,
        }],
        priority: 0,
        policy: "force".to_owned(),
        workload: Workload::default(),
        traceparent: None,
        told: false,
    }
}

#[test]
fn allotments_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("allotments.json");
    let (book, opened) = AllotmentStore::open(&path);
    assert!(opened.absent);
    let order = book.add(&name(0), "r", &ids(&[2, 1, 2])).unwrap();
    book.record(&[(name(0), recipient("u", "p"))]).unwrap();
    book.told("u");

    let (again, opened) = AllotmentStore::open(&path);

    assert_eq!((opened.read, opened.broken), (1, 0));
    let all = again.all();
    assert_eq!(all, book.all());
    assert_eq!(all[0].ids, ids(&[1, 2]));
    assert!(all[0].recipient.as_ref().unwrap().told);
    assert!(again.add(&name(1), "r", &ids(&[1])).unwrap() > order);
    again.forget(&[name(0)]);
    assert_eq!(AllotmentStore::open(&path).0.all().len(), 1);
}

#[test]
fn damaged_file_loses_only_damaged_lines_and_is_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("allotments.json");
    let (book, _) = AllotmentStore::open(&path);
    for number in 0..5 {
        book.add(&name(number), "r", &ids(&[number])).unwrap();
    }
    let whole = std::fs::read_to_string(&path).unwrap();
    let line = whole.find('\n').unwrap();
    let cases: [(String, usize, usize); 6] = [
        (whole.replace("vgpu-3", "vgpu-4"), 4, 1),
        (whole[..whole.len() - 20].to_owned(), 4, 1),
        (whole[line / 2..].to_owned(), 4, 1),
        ("\u{0}".repeat(whole.len()), 0, 1),
        ("{}\n[]\nnull\n".to_owned(), 0, 3),
        (String::new(), 0, 0),
    ];
    for (text, read, broken) in cases {
        std::fs::write(&path, &text).unwrap();
        let (again, opened) = AllotmentStore::open(&path);
        assert_eq!((opened.read, opened.broken), (read, broken), "{text}");
        assert_eq!(again.all().len(), read);
        if broken > 0 {
            let aside = std::fs::read_to_string(folder.path().join("allotments.broken"));
            assert_eq!(aside.unwrap(), text);
        }
        again.add(&name(9), "r", &ids(&[9])).unwrap();
        assert_eq!(AllotmentStore::open(&path).1.read, read + 1);
    }
}

#[test]
fn kill_during_a_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("allotments.json");
    let (book, _) = AllotmentStore::open(&path);
    book.add(&name(0), "r", &ids(&[0])).unwrap();
    // Half of the next content stands beside it.
    std::fs::write(folder.path().join(".allotments.json.new"), "{\"sum\":\"1").unwrap();

    let (again, opened) = AllotmentStore::open(&path);

    assert_eq!((opened.read, opened.broken), (1, 0));
    again.add(&name(1), "r", &ids(&[1])).unwrap();
    assert_eq!(AllotmentStore::open(&path).0.all().len(), 2);
}

#[test]
fn unwritten_allotment_is_remembered_counted_and_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state/allotments.json");
    let (book, _) = AllotmentStore::open(&path);

    assert!(book.add(&name(0), "r", &ids(&[0])).is_err());
    assert_eq!(book.counts(), (1, 1, true));
    std::fs::create_dir(folder.path().join("state")).unwrap();
    book.catch_up();

    assert_eq!(book.counts(), (1, 1, false));
    assert_eq!(AllotmentStore::open(&path).0.all(), book.all());
}

#[test]
fn recovered_allotments_are_older_and_known_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (book, _) = AllotmentStore::open(&folder.path().join("a.json"));
    book.add(&name(7), "r", &ids(&[7])).unwrap();
    let found = |number: usize| Allotment {
        order: 0,
        name: name(number).0,
        resource: "r".to_owned(),
        ids: ids(&[number]),
        recipient: None,
    };

    assert_eq!(book.recover(vec![found(1), found(7), found(2)]), 2);

    let all = book.all();
    let names: Vec<&str> = all.iter().map(|lot| lot.name.as_str()).collect();
    assert_eq!(names, ["v1", "v2", "v7"]);
    assert_eq!(
        all.iter().map(|lot| lot.order).collect::<Vec<_>>(),
        [1, 2, 3]
    );
}

#[test]
fn full_memory_forgets_reallotted_slots_first() {
    let mut inner = AllotmentsInner::default();
    for number in 0..MOST + 2 {
        // Slot 5 is held by its first holder for ever, all others change hands.
        let slot = if number == 5 { 5 } else { 10 + number % 7 };
        inner.allotments.push(Allotment {
            order: u64::try_from(number).unwrap(),
            name: name(number).0,
            resource: "r".to_owned(),
            ids: ids(&[slot]),
            recipient: None,
        });
    }

    inner.forget_superseded();

    assert_eq!(inner.allotments.len(), MOST);
    let orders: Vec<u64> = inner
        .allotments
        .iter()
        .take(5)
        .map(|lot| lot.order)
        .collect();
    assert_eq!(orders, [2, 3, 4, 5, 6]);
}

#[test]
fn recipients_compare_equal_after_instances_and_events() {
    let (first, mut later) = (recipient("u", "p"), recipient("u", "p"));
    later.told = true;
    later.shares[0].physical_bytes = 1;
    assert!(first.same(&later));
    later.shares[0].memory_bytes += 1;
    assert!(!first.same(&later));
    assert_eq!(first.given().policy, Policy::Force);
}
