//! Rules: code that the driver loads at its first use. Since CUDA 12.2 a module is loaded lazily, so the
//! first launch of a function may take memory. A function that was handed out and may not be loaded yet is
//! remembered; its first launch is measured as the load of a module is, what it took is charged, and where
//! that is past the limit nothing more is given. So are the first launch of an executable graph, and the
//! making of one, while such functions wait. A kernel node may be given such a function when it is added or
//! changed: that call is measured, and the next launch of an executable graph.
//!
//! Launches pass the table without a lock, and with one look at one word while nothing waits. Never
//! measures within a capture, which launches nothing.

use cuda_api::{CuFunction, CuGraphExec, CuKernelNodeParams, CuKernelNodeParamsV1, CuResult};

use crate::driver::query;
use crate::guest::border::InPtr;
use crate::guest::manners::Verdict;
use crate::holdings::measure::{self, Look};
use crate::holdings::{locate, module_charges};
use crate::state::accounts::{Accounts, Destination as Where};
use crate::state::launches::costs::Work;
use crate::state::launches::first_uses::{number_in, number_of};
use crate::state::standing::{self, Standing};

/// The first use of something.
#[derive(Clone, Copy)]
pub(crate) struct FirstUse {
    number: u64,
    owner: u64,
    device: usize,
    before: Option<Look>,
}

/// May a function that was handed out be one whose code is not loaded yet?
fn may_wait<F>(accounts: &Accounts, function: *mut F) -> bool {
    !function.is_null() && accounts.process.compute.first_uses.is_lazy()
}

/// A function of a module or a library was handed out. `kernel` is the library's kernel that the function is of, or
/// null.
pub(crate) fn function_given<F, K>(
    accounts: &Accounts,
    function: *mut F,
    kernel: *mut K,
    owner: u64,
) {
    let uses = &accounts.process.compute.first_uses;
    if !may_wait(accounts, function) {
        return;
    }
    let twin = if kernel.is_null() {
        0
    } else {
        number_of(kernel)
    };
    let number = number_of(function);
    if !uses.insert(number, owner, twin)
        && let Where::Device { device, .. } = locate::here(accounts)
    {
        measure::soon(accounts, device);
    }
    if twin != 0 && uses.knows(twin) {
        // The kernel is used when its function is.
        uses.insert(twin, owner, number);
    }
}

/// The same, unless the driver says that it is loaded.
pub(crate) fn function_found<K>(
    accounts: &Accounts,
    function: CuFunction,
    kernel: *mut K,
    owner: u64,
) {
    if may_wait(accounts, function) && query::relaxed(|| query::is_loaded(function)) != Some(true) {
        function_given(accounts, function, kernel, owner);
    }
}

/// The module or library that a function or kernel was handed out of, if it is remembered.
pub(crate) fn owner_of<F>(accounts: &Accounts, function: *mut F) -> Option<u64> {
    accounts
        .process
        .compute
        .first_uses
        .owner(number_of(function))
}

/// The code of a function was loaded by a call of its own.
pub(crate) fn function_loaded(accounts: &Accounts, function: CuFunction) {
    accounts
        .process
        .compute
        .first_uses
        .take(number_of(function));
}

/// A graph was made executable, or changed: functions that wait may be in it.
pub(crate) fn graph_made(exec: CuGraphExec) {
    let Standing::Ready(_, process) = standing::standing() else {
        return;
    };
    let uses = &process.compute.first_uses;
    if !uses.is_any_waiting() {
        return;
    }
    let number = Work::graph(exec as usize).key;
    if uses.insert(number, 0, 0) {
        uses.wait_again(number);
    }
}

/// Before something is launched into this stream: `None` unless it is used for the first time.
#[inline]
pub(crate) fn before_launch(accounts: &Accounts, work: Work, stream: u64) -> Option<FirstUse> {
    let number = number_in(work);
    if !accounts.process.compute.first_uses.waits(number) {
        return None;
    }
    before_first(accounts, number, stream)
}

#[cold]
fn before_first(accounts: &Accounts, number: u64, stream: u64) -> Option<FirstUse> {
    if !query::relaxed(|| query::is_out_of_captures(stream)) {
        return None;
    }
    let Where::Device { device, .. } = locate::here(accounts) else {
        return None;
    };
    let owner = accounts.process.compute.first_uses.take(number)?;
    Some(FirstUse {
        number,
        owner,
        device,
        before: measure::before(accounts, device),
    })
}

/// Before a graph is made executable, or an executable graph takes it over: the driver may load what is in it. `None`
/// while no function waits.
pub(crate) fn before_instantiate() -> Option<FirstUse> {
    let Standing::Ready(container, process) = standing::standing() else {
        return None;
    };
    if !process.compute.first_uses.is_any_waiting() {
        return None;
    }
    let accounts = Accounts { container, process };
    let Where::Device { device, .. } = locate::here(&accounts) else {
        return None;
    };
    Some(FirstUse {
        number: 0,
        owner: 0,
        device,
        before: measure::before(&accounts, device),
    })
}

/// The parameters of a kernel node, in either form.
pub(crate) trait KernelNode: Copy {
    /// Under which number the node's function, or else its kernel, was handed out.
    fn number(self) -> u64;
}

impl KernelNode for CuKernelNodeParamsV1 {
    fn number(self) -> u64 {
        number_of(self.function)
    }
}

impl KernelNode for CuKernelNodeParams {
    fn number(self) -> u64 {
        if self.function.is_null() {
            number_of(self.kernel)
        } else {
            number_of(self.function)
        }
    }
}

/// A kernel node is about to get a function that waits for its first use.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    function: u64,
    first: Option<FirstUse>,
}

/// Before a kernel node is added to a graph, or a node of a graph or of an executable graph gets new parameters: the
/// driver may load the function now, or when the graph is launched. Passes a function that was used already, so that a
/// program that changes its nodes all the time waits for no measurement.
pub(crate) fn before_exchange<P: KernelNode>(params: InPtr<P>) -> Verdict<Exchange> {
    match params.read().and_then(exchange) {
        Some(exchange) => Verdict::Call(exchange),
        None => Verdict::Pass,
    }
}

/// The same, of parameters that were read. `None`: nothing has to be measured.
pub(crate) fn exchange<P: KernelNode>(params: P) -> Option<Exchange> {
    let accounts = standing::opened()?;
    let uses = &accounts.process.compute.first_uses;
    let function = params.number();
    if !uses.waits(function) {
        return None;
    }
    let first = match locate::here(&accounts) {
        Where::Device { device, .. } => Some(FirstUse {
            number: 0,
            owner: uses.owner(function).unwrap_or(0),
            device,
            before: measure::before(&accounts, device),
        }),
        Where::Elsewhere | Where::Denied => None,
    };
    Some(Exchange { function, first })
}

/// A kernel node was added to a graph, or a kernel node of the graph got new parameters: charges what the driver loaded
/// for it. The function goes on waiting, because the driver may load it only when the graph is launched.
pub(crate) fn after_add(exchange: Exchange, result: CuResult) {
    if let Some(first) = exchange.first {
        after(first, result);
    }
}

/// The node has the function: charges what the driver loaded for it, and has the graph's next launch measured.
pub(crate) fn after_exchange(exchange: Exchange, result: CuResult, exec: CuGraphExec) {
    if let Some(first) = exchange.first {
        after(first, result);
    }
    if result == CuResult::SUCCESS
        && let Some(accounts) = standing::opened()
    {
        // The graph first: it waits only while something does.
        graph_made(exec);
        accounts.process.compute.first_uses.take(exchange.function);
    }
}

/// After a first launch: charges the memory that the driver took for it. If the container is then over its limit, a
/// record says so, and no request is granted until the charges fit again.
#[cold]
pub(crate) fn after(first: FirstUse, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let FirstUse {
        number,
        owner,
        device,
        before,
    } = first;
    if result != CuResult::SUCCESS {
        accounts.process.compute.first_uses.wait_again(number);
    }
    module_charges::charge_first_use(&accounts, "first launch", device, before, owner);
}

/// An executable graph was destroyed or made: from now on its handle is that of another graph.
pub(crate) fn forget_graph(exec: CuGraphExec) {
    if let Standing::Ready(_, process) = standing::standing() {
        process.compute.costs.forget(Work::graph(exec as usize).key);
        process.compute.first_uses.forget_graph(exec);
    }
}
