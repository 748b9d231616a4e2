//! Green contexts: a share of a device's multiprocessors with streams of its own. A kernel takes as
//! much longer there as the share is smaller than the whole; a context is not kept off another one's share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cuda_api::driver::*;

use crate::base::border::{Done, handle, invalid_if, read, read_all, refuse_if, write, write_if};
use crate::base::model::MULTIPROCESSORS;
use crate::base::table::Table;
use crate::memory::context::{self, Ctx, share_of};
use crate::process::driver;
use crate::streams::recording;
use crate::streams::stream;

calls! {
    cuDeviceGetDevResource(device, out, kind)
        => { driver::the()?.gpu(device)?; put_resource(out, kind, MULTIPROCESSORS as u32) };
    cuCtxGetDevResource(ctx, out, kind)
        => put_resource(out, kind, share_of(context::find_or_current(ctx)?));
    cuGreenCtxGetDevResource(ctx, out, kind) => put_resource(out, kind, find(ctx)?.multiprocessors);
    cuStreamGetDevResource(stream, out, kind)
        => put_resource(out, kind, share_of(stream::find(stream)?.context));
    cuDevSmResourceSplitByCount(result, groups, input, remainder, _flags, min_count)
        => split_by_count(result, groups, input, remainder, min_count);
    cuDevSmResourceSplit(result, groups, input, remainder, _flags, params)
        => split(result, groups, input, remainder, params);
    cuGreenCtxDestroy(ctx) => {
        let green = find(ctx)?;
        if !green.is_gone.swap(true, Ordering::SeqCst) {
            context::end(green.context);
        }
        Ok(())
    };
    cuCtxFromGreenCtx(out, ctx) => write(out, find(ctx)?.context.as_handle());
    cuGreenCtxGetId(green_ctx, id) => write(id, find(green_ctx)?.id);
    cuGreenCtxStreamCreate(out, green_ctx, flags, priority) => {
        const NON_BLOCKING: u32 = 1;
        let green = find(green_ctx)?;
        // It does not concern the default stream of another context.
        invalid_if(flags & NON_BLOCKING == 0 || out.is_null())?;
        let made = stream::create(green.context, flags, priority)?;
        write(out, handle(Arc::as_ptr(&made).expose_provenance()))
    };
    cuGreenCtxRecordEvent(ctx, event)
        => recording::record(&*stream::legacy(find(ctx)?.context)?, event, 0);
    cuGreenCtxWaitEvent(ctx, event) => {
        for stream in stream::of_context(find(ctx)?.context) {
            recording::wait(&stream, event, 0)?;
        }
        Ok(())
    };
    cuDevResourceGenerateDesc(out, resources, count) => {
        let mut total = 0;
        for part in read_all(resources.cast_const(), count as usize)? {
            refuse_if(part.kind != SM, CuResult::INVALID_RESOURCE_TYPE)?;
            total += part.sm.sm_count;
        }
        let fits = (1..=MULTIPROCESSORS as u32).contains(&total);
        refuse_if(!fits, CuResult::INVALID_RESOURCE_CONFIGURATION)?;
        write(out, handle(DESCRIPTIONS.insert(Arc::new(Description(total)))))
    };
    cuGreenCtxCreate(out, desc, device, flags) => {
        const DEFAULT_STREAM: u32 = 1;
        let Description(share) = *DESCRIPTIONS.find(desc.addr())?;
        invalid_if(flags != DEFAULT_STREAM || out.is_null())?;
        let green = Green {
            context: context::make_green(device, share)?,
            multiprocessors: share,
            // Relaxed: only has to differ from every other.
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            is_gone: AtomicBool::new(false),
        };
        write(out, handle(GREENS.insert(Arc::new(green))))
    };
}

const SM: u32 = 1;

/// The smallest share, and the unit of which shares are multiples.
const ALIGNMENT: u32 = 8;

/// The number of multiprocessors of a generated resource.
#[derive(Debug)]
struct Description(u32);

#[derive(Debug)]
struct Green {
    context: Ctx,
    multiprocessors: u32,
    id: u64,
    is_gone: AtomicBool,
}

static DESCRIPTIONS: Table<Description> = Table::new(CuResult::INVALID_HANDLE);
static GREENS: Table<Green> = Table::new(CuResult::INVALID_HANDLE);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn resource(multiprocessors: u32) -> CuDevResource {
    CuDevResource {
        kind: SM,
        internal: [0; 92],
        sm: CuDevSmResource {
            sm_count: multiprocessors,
            min_partition: ALIGNMENT,
            alignment: ALIGNMENT,
            flags: 0,
            locality_domain: 0,
        },
        pad: [0; 20],
        next: std::ptr::null_mut(),
    }
}

fn put_resource(out: *mut CuDevResource, kind: u32, multiprocessors: u32) -> Done {
    refuse_if(kind != SM, CuResult::INVALID_RESOURCE_TYPE)?;
    write(out, resource(multiprocessors))
}

fn find(green: CuGreenCtx) -> Done<Arc<Green>> {
    let found = GREENS.find(green.addr())?;
    // SeqCst: destroyed once, by the first call.
    refuse_if(
        found.is_gone.load(Ordering::SeqCst),
        CuResult::INVALID_HANDLE,
    )?;
    Ok(found)
}

fn sm_input(input: *const CuDevResource) -> Done<u32> {
    let input = read(input)?;
    refuse_if(input.kind != SM, CuResult::INVALID_RESOURCE_TYPE)?;
    Ok(input.sm.sm_count)
}

/// Splits into groups of the same size.
fn split_by_count(
    result: *mut CuDevResource,
    groups: *mut u32,
    input: *const CuDevResource,
    remainder: *mut CuDevResource,
    min_count: u32,
) -> Done {
    let total = sm_input(input)?;
    let each = min_count.max(1).next_multiple_of(ALIGNMENT);
    let possible = total / each;
    let wanted = read(groups.cast_const())?;
    refuse_if(possible == 0, CuResult::INVALID_RESOURCE_CONFIGURATION)?;
    // Without room for results it is asked how many there would be.
    if result.is_null() {
        return write(groups, possible);
    }
    let made = wanted.min(possible);
    for index in 0..made as usize {
        write(result.wrapping_add(index), resource(each))?;
    }
    write_if(remainder, resource(total - made * each));
    write(groups, made)
}

fn split(
    result: *mut CuDevResource,
    groups: u32,
    input: *const CuDevResource,
    remainder: *mut CuDevResource,
    params: *mut CuDevSmResourceGroupParams,
) -> Done {
    let mut left = sm_input(input)?;
    let groups = read_all(params.cast_const(), groups as usize)?;
    for (index, group) in groups.into_iter().enumerate() {
        let wanted = match group.sm_count {
            0 => left / ALIGNMENT * ALIGNMENT,
            count => count.next_multiple_of(ALIGNMENT),
        };
        let rest = left.checked_sub(wanted);
        left = rest.ok_or(CuResult::INVALID_RESOURCE_CONFIGURATION)?;
        if !result.is_null() {
            write(result.wrapping_add(index), resource(wanted))?;
        }
    }
    write_if(remainder, resource(left));
    Ok(())
}

/// The green context whose context this is, as programs hold it; 0 if it is not a green one's.
pub(crate) fn of_context(context: Ctx) -> usize {
    // Relaxed: written before the program had the context.
    if context.multiprocessors.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let found = GREENS.select(|green| green.context.handle == context.handle);
    let first = found.first().map(Arc::as_ptr);
    first.map_or(0, |green| green.expose_provenance())
}

/// Called at the end of a context: the green context of an ended one becomes invalid.
pub(crate) fn context_gone(context: Ctx) {
    GREENS.take(|green| green.context.handle == context.handle);
}
