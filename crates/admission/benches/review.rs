//! The cost of a review: decoding, deciding, encoding. `cargo bench -p admission`; tests do not run it.

mod common;

use std::hint::black_box;
use std::sync::Arc;

use admission::{Admission, Answer, Settings};
use common::{pod, review};
use criterion::{Criterion, criterion_group, criterion_main};
use kube_api::config::DeviceConfig;
use kube_api::vendor::{Switches, Vendors};
use serde_json::json;

fn reviews(c: &mut Criterion) {
    let switches = Switches {
        ascend: true,
        iluvatar: true,
    };
    let Ok(vendors) = Vendors::new(DeviceConfig::standard(), switches) else {
        return;
    };
    let admission = Admission::new(Arc::new(vendors), Settings::default());
    let gpu =
        json!({ "cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Gi" });
    let plain = json!({ "cpu": "4", "memory": "16Gi" });
    for (name, pod) in [
        ("one container with a GPU", pod(1, &gpu)),
        ("one container without", pod(1, &plain)),
        ("ten containers with GPUs", pod(10, &gpu)),
    ] {
        let body = review(&pod);
        c.bench_function(&format!("{name}, {} bytes", body.len()), |bencher| {
            bencher.iter(|| {
                let answer = admission.review(black_box(&body));
                assert!(matches!(answer, Answer::Reviewed(_)));
                answer
            });
        });
    }
}

criterion_group!(benches, reviews);
criterion_main!(benches);
