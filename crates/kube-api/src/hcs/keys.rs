//! The names of resources and annotations of hcs.io. No other file contains them.

/// The prefix of abstract resources.
pub const RESOURCE_PREFIX: &str = "ai.compute/";
/// Memory, in bytes, over all devices of the container.
pub const VRAM: &str = "ai.compute/vram";
/// Compute of 16-bit floats, in TFLOPS, over all devices of the container.
pub const TFLOPS_FP16: &str = "ai.compute/tflops-fp16";
/// Compute of 32-bit floats, in TFLOPS, over all devices of the container.
pub const TFLOPS_FP32: &str = "ai.compute/tflops-fp32";
/// The number of devices.
pub const DEVICES: &str = "ai.compute/devices";
/// All abstract resources.
pub const RESOURCES: [&str; 4] = [VRAM, TFLOPS_FP16, TFLOPS_FP32, DEVICES];

/// The document's name for whole Ascend devices.
pub const HUAWEI_ASCEND: &str = "huawei.com/ascend";
/// The name for whole Ascend devices in the published code.
pub const HUAWEI_NPU: &str = "huawei.com/npu";
/// The name for Hygon devices in the published code.
pub const HYGON_DCU: &str = "hygon.com/dcu";
/// The name for Cambricon devices in the published code.
pub const CAMBRICON_MLU: &str = "cambricon.com/mlu";
/// The name for NVIDIA devices.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";

/// `nvidia`, `huawei`, `hygon`, `cambricon` or `any`: which vendor the pod prefers.
pub const VENDOR_PREFERENCE: &str = "hcs.io/vendor-preference";
/// `true` or `false`: whether another vendor, or a device slower than the fastest suitable one, is accepted.
pub const ALLOW_DOWNGRADE: &str = "hcs.io/allow-downgrade";
/// `high-bandwidth` or `low-latency`: how several devices of a pod should be connected.
pub const TOPOLOGY_PREFERENCE: &str = "hcs.io/topology-preference";

/// Written by the scheduler: the vendor of the pod's devices.
pub const ASSIGNED_VENDOR: &str = "hcs.io/assigned-vendor";
/// Written by the scheduler: the indices of the pod's devices on its node, as `0,1`.
pub const ASSIGNED_DEVICES: &str = "hcs.io/assigned-devices";
/// Written by the scheduler: the pod's node.
pub const ASSIGNED_NODE: &str = "hcs.io/assigned-node";
/// Written by the scheduler: 0 to 100.
pub const SCHEDULING_SCORE: &str = "hcs.io/scheduling-score";
/// Annotations of a pod that only the scheduler writes.
pub const RESULTS: [&str; 4] = [
    ASSIGNED_VENDOR,
    ASSIGNED_DEVICES,
    ASSIGNED_NODE,
    SCHEDULING_SCORE,
];

/// Written by the webhook: the limits of `ai.compute/*` that the pod named above its requests, as JSON by container.
pub const BURST_LIMITS: &str = "hcs.io/burst-limits";

/// `true` or `false`: whether the webhook adds the variables that name the pod's devices to the vendor's driver.
pub const INJECT_DRIVER: &str = "hcs.io/inject-driver";
/// `true` or `false`: whether the webhook sets the vendor's runtime class.
pub const INJECT_RUNTIME: &str = "hcs.io/inject-runtime";
/// `true` or `false`: whether the webhook replaces images by the configured rules.
pub const IMAGE_REBINDING: &str = "hcs.io/image-rebinding";
/// Written by the webhook: the images that it replaced, as JSON by container.
pub const ORIGINAL_IMAGES: &str = "hcs.io/original-images";

/// On a pod: the ComputeTask that it runs; label.
pub const TASK: &str = "hcs.io/compute-task";
/// On a pod: which attempt of the ComputeTask it is, from 1; label.
pub const TASK_ATTEMPT: &str = "hcs.io/compute-task-attempt";
