//! Rules: code that the driver loads at its first use. Since CUDA 12.2 a module is loaded lazily, so the
//! first launch of a function may take memory. A function that was handed out and may not be loaded yet is
//! remembered; its first launch is measured as the load of a module is, what it took is charged, and where
//! that is past the limit nothing more is given. So are the first launch of an executable graph, and the
//! making of one, while such functions wait.
//!
//! Launches pass the table without a lock, and with one look at one word while nothing waits. Never
//! measures within a capture, which launches nothing.

use cuda_api::{CuFunction, CuGraphExec, CuResult};

use crate::driver::query;
use crate::holdings::measure::{self, Look};
use crate::holdings::{locate, module_books};
use crate::state::books::{Books, Place as Where};
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
fn may_wait<F>(books: &Books, function: *mut F) -> bool {
    !function.is_null() && books.process.compute.first_uses.is_lazy()
}

/// A function of a module or a library was handed out. `kernel` is the library's kernel that it stands
/// for, or null.
pub(crate) fn function_given<F, K>(books: &Books, function: *mut F, kernel: *mut K, owner: u64) {
    let uses = &books.process.compute.first_uses;
    if !may_wait(books, function) {
        return;
    }
    let twin = if kernel.is_null() {
        0
    } else {
        number_of(kernel)
    };
    let number = number_of(function);
    if !uses.insert(number, owner, twin)
        && let Where::Device { device, .. } = locate::here(books)
    {
        measure::soon(books, device);
    }
    if twin != 0 && uses.knows(twin) {
        // The kernel is used when its function is.
        uses.insert(twin, owner, number);
    }
}

/// The same, unless the driver says that it is loaded.
pub(crate) fn function_found<K>(books: &Books, function: CuFunction, kernel: *mut K, owner: u64) {
    if may_wait(books, function) && query::relaxed(|| query::is_loaded(function)) != Some(true) {
        function_given(books, function, kernel, owner);
    }
}

/// The module or library that a function or kernel was handed out of, if it is remembered.
pub(crate) fn owner_of<F>(books: &Books, function: *mut F) -> Option<u64> {
    books.process.compute.first_uses.owner(number_of(function))
}

/// The code of a function was loaded by a call of its own.
pub(crate) fn function_loaded(books: &Books, function: CuFunction) {
    books.process.compute.first_uses.take(number_of(function));
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
pub(crate) fn before_launch(books: &Books, work: Work, stream: u64) -> Option<FirstUse> {
    let number = number_in(work);
    if !books.process.compute.first_uses.waits(number) {
        return None;
    }
    before_first(books, number, stream)
}

#[cold]
fn before_first(books: &Books, number: u64, stream: u64) -> Option<FirstUse> {
    if !query::relaxed(|| query::is_out_of_captures(stream)) {
        return None;
    }
    let Where::Device { device, .. } = locate::here(books) else {
        return None;
    };
    let owner = books.process.compute.first_uses.take(number)?;
    Some(FirstUse {
        number,
        owner,
        device,
        before: measure::before(books, device),
    })
}

/// Before a graph is made executable: the driver may load what is in it. `None` while no function waits.
pub(crate) fn before_instantiate() -> Option<FirstUse> {
    let Standing::Ready(container, process) = standing::standing() else {
        return None;
    };
    if !process.compute.first_uses.is_any_waiting() {
        return None;
    }
    let books = Books { container, process };
    let Where::Device { device, .. } = locate::here(&books) else {
        return None;
    };
    Some(FirstUse {
        number: 0,
        owner: 0,
        device,
        before: measure::before(&books, device),
    })
}

/// It was launched: what that took is charged, since the driver has given it. Where the limit is passed
/// by it, a record says so, and nothing is given until it fits again.
#[cold]
pub(crate) fn after(first: FirstUse, result: CuResult) {
    let Some(books) = standing::opened() else {
        return;
    };
    let FirstUse {
        number,
        owner,
        device,
        before,
    } = first;
    if result != CuResult::SUCCESS {
        books.process.compute.first_uses.wait_again(number);
    }
    module_books::charge_first_use(&books, "first launch", device, before, owner);
}

/// An executable graph is gone, or made: its name stands for something else.
pub(crate) fn forget_graph(exec: CuGraphExec) {
    if let Standing::Ready(_, process) = standing::standing() {
        process.compute.costs.forget(Work::graph(exec as usize).key);
        process.compute.first_uses.forget_graph(exec);
    }
}
