//! The figures of the models that are known without a configuration. Does not compare them.
//!
//! Compute is in TFLOPS per device: 16-bit floats are dense on the matrix units with 32-bit accumulation, 32-bit floats
//! are on the vector units. Bandwidth is in GB/s, power in W. A figure of 0 is unknown; a request in that figure never
//! gets such a device.
//!
//! The column `Sure` says where the figures of a row come from:
//!
//! * `Recorded`: the table of the published hetero-compute-router, kept figure by figure, because its clients compare
//!   with it. Its A100, H100 and V100 rows agree with NVIDIA's datasheets. Its RTX rows agree with NVIDIA's
//!   architecture whitepapers. Its 910A and 910B rows are above the values for 32-bit floats on Huawei's own slides.
//! * `Datasheet`: the vendor's public datasheet or architecture whitepaper of the model.
//! * `Reported`: no public datasheet has all figures; they come from lists of resellers and integrators that agree. A
//!   cluster that depends on such a row should put its own measurement into the configuration.

use super::{Maker, Profile, Sure};

const GIB: u64 = 1 << 30;

struct Line(Maker, &'static str, f64, f64, u64, f64, u32, Sure);

#[rustfmt::skip]
const LINES: &[Line] = {
    use Maker::{Cambricon, Huawei, Hygon, Nvidia};
    use Sure::{Datasheet, Recorded, Reported};
    &[
        // Model, FP16, FP32 (TFLOPS), GiB, GB/s, W.
        Line(Nvidia, "A100-80GB",        312.0,  19.5,  80, 2039.0,  400, Recorded),
        Line(Nvidia, "A100-40GB",        312.0,  19.5,  40, 1555.0,  400, Recorded),
        Line(Nvidia, "H100-80GB",        989.0,  67.0,  80, 3350.0,  700, Recorded),
        Line(Nvidia, "V100-32GB",        125.0,  15.7,  32,  900.0,  300, Recorded),
        Line(Nvidia, "RTX4090",          165.0,  82.6,  24, 1008.0,  450, Recorded),
        Line(Nvidia, "RTX3090",           71.0,  35.6,  24,  936.0,  350, Recorded),
        Line(Huawei, "910B",             320.0, 160.0,  64, 1600.0,  400, Recorded),
        Line(Huawei, "910A",             256.0, 128.0,  32, 1200.0,  310, Recorded),
        // NVIDIA data centre.
        Line(Nvidia, "A800-80GB",        312.0,  19.5,  80, 2039.0,  400, Datasheet),
        Line(Nvidia, "H100-PCIE-80GB",   756.0,  51.0,  80, 2000.0,  350, Datasheet),
        Line(Nvidia, "H100-NVL-94GB",    835.0,  60.0,  94, 3900.0,  400, Datasheet),
        Line(Nvidia, "H800-80GB",        989.0,  67.0,  80, 3350.0,  700, Reported),
        Line(Nvidia, "H200-141GB",       989.0,  67.0, 141, 4800.0,  700, Datasheet),
        Line(Nvidia, "H200-NVL-141GB",   835.0,  60.0, 141, 4800.0,  600, Datasheet),
        Line(Nvidia, "H20-96GB",         148.0,  44.0,  96, 4000.0,  400, Reported),
        Line(Nvidia, "GH200-96GB",       989.0,  67.0,  96, 4000.0,  900, Datasheet),
        Line(Nvidia, "B200-180GB",      2250.0,  75.0, 180, 7700.0, 1000, Datasheet),
        Line(Nvidia, "B300-270GB",      2250.0,  75.0, 270, 7700.0, 1100, Reported),
        Line(Nvidia, "V100-16GB",        125.0,  15.7,  16,  900.0,  300, Datasheet),
        Line(Nvidia, "P100-16GB",         21.2,  10.6,  16,  732.0,  300, Datasheet),
        Line(Nvidia, "T4-16GB",           65.0,   8.1,  16,  320.0,   70, Datasheet),
        Line(Nvidia, "A2-16GB",           18.0,   4.5,  16,  200.0,   60, Datasheet),
        Line(Nvidia, "A10-24GB",         125.0,  31.2,  24,  600.0,  150, Datasheet),
        Line(Nvidia, "A30-24GB",         165.0,  10.3,  24,  933.0,  165, Datasheet),
        Line(Nvidia, "A40-48GB",         149.7,  37.4,  48,  696.0,  300, Datasheet),
        Line(Nvidia, "L4-24GB",          121.0,  30.3,  24,  300.0,   72, Datasheet),
        Line(Nvidia, "L20-48GB",         119.5,  59.8,  48,  864.0,  275, Reported),
        Line(Nvidia, "L40-48GB",         181.0,  90.5,  48,  864.0,  300, Datasheet),
        Line(Nvidia, "L40S-48GB",        362.0,  91.6,  48,  864.0,  350, Datasheet),
        // NVIDIA workstations and desktops.
        Line(Nvidia, "RTXA6000-48GB",    154.8,  38.7,  48,  768.0,  300, Datasheet),
        Line(Nvidia, "RTX6000ADA-48GB",  364.2,  91.1,  48,  960.0,  300, Datasheet),
        Line(Nvidia, "RTX3080-10GB",      59.5,  29.8,  10,  760.0,  320, Datasheet),
        Line(Nvidia, "RTX4080-16GB",      97.5,  48.7,  16,  717.0,  320, Datasheet),
        Line(Nvidia, "RTX5080-16GB",     112.6,  56.3,  16,  960.0,  360, Datasheet),
        Line(Nvidia, "RTX5090-32GB",     209.5, 104.8,  32, 1792.0,  575, Datasheet),
        // Huawei. No public datasheet of these models gives 32-bit floats.
        Line(Huawei, "910B2",            376.0,   0.0,  64, 1600.0,  400, Reported),
        Line(Huawei, "910B3",            313.0,   0.0,  64, 1600.0,  400, Reported),
        Line(Huawei, "910B4",            280.0,   0.0,  32,  800.0,  350, Reported),
        Line(Huawei, "910B4-1",          280.0,   0.0,  64,  800.0,  350, Reported),
        // One package of two dies. The plugin counts each die as a device, so the figures are one die's.
        Line(Huawei, "910C",             390.0,   0.0,  64, 1600.0,  350, Reported),
        Line(Huawei, "310P",              70.0,   0.0,  24,  204.8,   72, Datasheet),
        // Hygon.
        Line(Hygon, "Z100-32GB",          24.5,  12.2,  32, 1024.0,  280, Reported),
        Line(Hygon, "Z100L-32GB",         24.5,  12.2,  32, 1024.0,  250, Reported),
        Line(Hygon, "K100-64GB",         100.0,  24.5,  64,  896.0,  300, Reported),
        Line(Hygon, "K100-AI-64GB",      192.0,  49.0,  64,  896.0,  350, Reported),
        // Cambricon.
        Line(Cambricon, "MLU370-S4-24GB", 72.0,  18.0,  24,  307.2,   75, Datasheet),
        Line(Cambricon, "MLU370-X4-24GB", 96.0,  24.0,  24,  307.2,  150, Datasheet),
        Line(Cambricon, "MLU370-X8-48GB", 96.0,  24.0,  48,  614.4,  250, Datasheet),
        Line(Cambricon, "MLU590-80GB",   314.0,   0.0,  80, 2048.0,  350, Reported),
    ]
};

/// All models that are known without a configuration.
pub(super) fn built_in() -> impl Iterator<Item = (Profile, Sure)> {
    LINES.iter().map(
        |&Line(maker, model, fp16, fp32, gib, bandwidth, watts, sure)| {
            let profile = Profile {
                vendor: maker.as_str().to_owned(),
                model: model.to_owned(),
                fp16_tflops: fp16,
                fp32_tflops: fp32,
                vram_bytes: gib * GIB,
                mem_bw_gbps: bandwidth,
                tdp_watts: watts,
            };
            (profile, sure)
        },
    )
}
