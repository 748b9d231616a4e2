//! Copies and frees in stream order, or as nodes of the graph that the stream captures.

use std::sync::Arc;

use cuda_sim::exec::Work;

use crate::base::border::Done;
use crate::process::helper;
use crate::process::work::exec;
use crate::streams::capturing;
use crate::streams::graph::Body;
use crate::streams::stream::{Stream, in_order, ordered_idle, submit, submit_call};

/// Does something to memory in stream order, and lets the stream's copy engine take the time for
/// that many bytes; a stream that captures gets a node instead, which does it at each launch.
///
/// A copy that can be done at once is done: kernels do not compute here, so no result of an earlier one could
/// be missed; only other host work must not be overtaken.
pub(crate) fn copy_async(
    stream: &Stream,
    bytes: u64,
    act: impl Fn() + Send + Sync + 'static,
) -> Done {
    let act: Arc<dyn Fn() + Send + Sync> = Arc::new(act);
    let act_of_node = Arc::clone(&act);
    if capturing::takes(stream, || {
        Ok(Body::Copy {
            act: act_of_node,
            bytes,
        })
    })? {
        return Ok(());
    }
    if helper::anything_pending() {
        submit_call(stream, move || act())?;
    } else {
        act();
    }
    let ns = exec()?.script().copy_ns(bytes);
    submit(stream, Work::Copy { ns }).map(drop)
}

/// The same, and waits until it is done: the copies whose names do not end in Async.
pub(crate) fn copy(stream: &Stream, bytes: u64, act: impl Fn() + Send + Sync + 'static) -> Done {
    capturing::query_of_stream(stream)?;
    copy_async(stream, bytes, act)?;
    exec()?.drain(stream.channel);
    Ok(())
}

/// The same for freeing, which a driver may put behind kernels too.
pub(crate) fn free_in_order(stream: &Stream, act: impl FnOnce() + Send + 'static) -> Done {
    if crate::process::choices::frees_wait_for_kernels() && !ordered_idle(stream)? {
        return submit_call(stream, act);
    }
    in_order(stream, act)
}
