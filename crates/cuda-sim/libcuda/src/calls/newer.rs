//! Functions of CUDA 13 that have the meaning of older ones, or whose answer is always the same here.

use cuda_api::driver::*;
use cuda_sim::exec::Work;

use crate::base::border::{check_out, invalid_if, write};
use crate::calls::graph;
use crate::memory::blocks::{self, BlockKind};
use crate::process::driver;
use crate::process::work::exec;
use crate::streams::capturing;
use crate::streams::stream;

calls! {
    cuGraphAddNode_v3(out, graph, dependencies, dependency_data, count, params)
        => graph::cuGraphAddNode_v2(out, graph, dependencies, dependency_data, count, params);
    cuGraphNodeSetParams_v2(node, params) => graph::cuGraphNodeSetParams(node, params);
    // Copies between GPUs of a fabric: they take the time of their latency each, and move nothing.
    cuFabricCpyBatchAsync(count_ops, op_list, flags, stream) => {
        check_out(op_list)?;
        let found = stream::find(stream)?;
        invalid_if(count_ops == 0 || flags != 0)?;
        capturing::forbidden(&found)?;
        for _ in 0..count_ops.min(1024) {
            let ns = exec()?.script().copy_ns(0);
            stream::submit(&found, Work::Copy { ns })?;
        }
        Ok(())
    };
    // The location of memory: the device that it was made on.
    cuMemGetLocationInfo(ptr, size, _summary_granularity, _sampling_granularity, location_out) => {
        const DEVICE: u32 = 1;
        const HOST: u32 = 2;
        let (_, block) = blocks::find(ptr.0).ok_or(CuResult::INVALID_VALUE)?;
        invalid_if(size == 0 || !blocks::is_reachable(ptr.0, size as u64))?;
        let ordinal = driver::the()?.ordinal(block.gpu);
        let on_host = matches!(block.kind, BlockKind::Host { .. } | BlockKind::Registered);
        let location = match ordinal.filter(|_| !on_host) {
            Some(device) => CuMemLocation {
                kind: DEVICE,
                id: device.0,
            },
            None => CuMemLocation { kind: HOST, id: 0 },
        };
        write(location_out, location)
    };
}
