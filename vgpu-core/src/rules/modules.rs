//! Rules: modules. A module's memory is read from its image, reserved before it is loaded, and compared with the
//! memory that the driver took: a module that went past the limit is unloaded again. A function that is loaded at its
//! first use is charged then; contexts and modules together are settled to the figure that NVML or the host measures.
//! Libraries have rules of their own.

use cuda_api::{CuFunction, CuKernel, CuResult};
use vgpu_abi::region::{Charge, Kind};

use crate::base::log::line;
use crate::driver::query;
use crate::figures::image::Declared;
use crate::figures::sizes::{self, mapped};
use crate::guest::border::{Address, Image, OutPtr};
use crate::guest::manners::{self, Verdict};
use crate::holdings::measure::{self, Look};
use crate::holdings::module_charges::{self, charge_first_use};
use crate::holdings::{locate, requests};
use crate::rules::first_use;
use crate::state::accounts::{Accounts, Destination};
use crate::state::entries::{Loaded, Module};
use crate::state::holdings::OverheadKind;
use crate::state::standing::{self, accounts};

/// A module about to be loaded, or the copy of a library.
#[derive(Clone, Copy)]
pub(crate) struct ModuleLoad {
    pub(crate) call: &'static str,
    charge: Charge,
    /// The context that it dies with.
    pub(crate) owner: u64,
    is_whole: bool,
    before: Option<Look>,
}

/// A module about to go.
#[derive(Clone, Copy)]
pub(crate) struct ModuleUnload {
    number: u64,
    entry: Module,
}

/// Something that may be loaded by a call that looks it up.
#[derive(Clone, Copy)]
pub(crate) struct LookingUp {
    call: &'static str,
    device: usize,
    before: Option<Look>,
    /// The module or library that it is of; 0 where that is not known.
    module: u64,
}

pub(crate) fn before_load(call: &'static str, image: Image) -> Verdict<ModuleLoad> {
    let accounts = accounts!(Context);
    let destination = match locate::here(&accounts) {
        Destination::Elsewhere => return Verdict::Pass,
        destination => destination,
    };
    let Some(declared) = manners::uncancelled(|| image.declared()) else {
        return Verdict::Pass;
    };
    match reserve_at(&accounts, call, destination, declared) {
        Ok(loading) => Verdict::Call(loading),
        Err(result) => Verdict::Refuse(result),
    }
}

/// Room for what an image declares, in the current context.
pub(crate) fn reserve_at(
    accounts: &Accounts,
    call: &'static str,
    destination: Destination,
    declared: Declared,
) -> Result<ModuleLoad, CuResult> {
    let Destination::Device { device, owner } = destination else {
        return Err(CuResult::NOT_PERMITTED);
    };
    let before = measure::before(accounts, device);
    let bytes = mapped(declared.bytes.max(1));
    let charge = requests::reserve_overhead(accounts, call, device, bytes)?;
    Ok(ModuleLoad {
        call,
        charge,
        owner,
        is_whole: declared.is_whole,
        before,
    })
}

pub(crate) fn after_load<A>(
    loading: ModuleLoad,
    result: CuResult,
    out: OutPtr<*mut A>,
) -> Option<CuResult> {
    let accounts = standing::opened()?;
    let Some(module) = out.read().filter(|_| result == CuResult::SUCCESS) else {
        refund(&accounts, loading);
        return None;
    };
    let unload = || query::unload_module(module.number());
    let (entry, answer) = loaded(&accounts, loading, unload);
    let Some(entry) = entry else {
        out.write(core::ptr::null_mut());
        return answer;
    };
    accounts.holdings().map.put(module.number(), Module(entry));
    answer
}

/// The driver has not loaded it.
pub(crate) fn refund(accounts: &Accounts, loading: ModuleLoad) {
    accounts.refund(loading.charge);
}

/// The driver has loaded the module: it is charged with the memory that it took. `None`: that went past the limit, so
/// the module was unloaded again. Also returns the answer for the caller.
pub(crate) fn loaded(
    accounts: &Accounts,
    loading: ModuleLoad,
    unload: impl FnOnce() -> bool,
) -> (Option<Loaded>, Option<CuResult>) {
    let (mut entry, more) = confirm(accounts, loading);
    let device = usize::from(entry.device);
    let mut answer = None;
    if more > 0 {
        match requests::reserve_overhead(accounts, loading.call, device, more) {
            Ok(charge) => accounts.confirm(charge, Kind::Module),
            Err(refused) if manners::uncancelled(unload) => {
                gone(accounts, &entry);
                return (None, Some(refused));
            }
            Err(refused) => {
                // The driver keeps it, so it counts, and nothing more is given.
                accounts.container.region.charge(device, more, Kind::Module);
                line!(Error, "a module past the limit cannot be unloaded");
                answer = Some(refused);
            }
        }
        accounts
            .holdings()
            .add_overhead(device, OverheadKind::Module, more);
        entry.bytes = entry.bytes.saturating_add(more);
    }
    (Some(entry), answer)
}

/// Confirms the module's charge. Also returns the bytes that the driver took beyond it.
pub(crate) fn confirm(accounts: &Accounts, loading: ModuleLoad) -> (Loaded, u64) {
    let charge = loading.charge;
    let device = charge.device();
    let taken = measure::taken(accounts, device, loading.before, charge.bytes());
    accounts.confirm(charge, Kind::Module);
    let holdings = accounts.holdings();
    holdings.add_overhead(device, OverheadKind::Module, charge.bytes());
    let is_whole = loading.is_whole && !accounts.process.compute.first_uses.is_lazy();
    let short = if is_whole { 0 } else { taken.short };
    holdings.charged_in_advance(device, short);
    let loaded = Loaded {
        bytes: charge.bytes(),
        context: loading.owner,
        steps_in_advance: u32::try_from(short / sizes::STEP).unwrap_or(u32::MAX),
        device: u8::try_from(device).unwrap_or(u8::MAX),
        is_whole,
    };
    (loaded, taken.beyond)
}

/// The charge in advance for a module, or for the copy of a library, bytes.
pub(crate) fn in_advance(loaded: &Loaded) -> u64 {
    u64::from(loaded.steps_in_advance).saturating_mul(sizes::STEP)
}

/// A module, or the copy of a library, was unloaded.
pub(crate) fn gone(accounts: &Accounts, loaded: &Loaded) {
    let device = usize::from(loaded.device);
    let holdings = accounts.holdings();
    holdings.take_in_advance(device, in_advance(loaded));
    holdings.drop_module(&accounts.container.region, device, loaded.bytes);
}

pub(crate) fn before_unload<M>(module: *mut M) -> Verdict<ModuleUnload> {
    let accounts = accounts!(Context);
    let number = module.number();
    match accounts.holdings().map.take(number) {
        Some(entry) => Verdict::Call(ModuleUnload { number, entry }),
        None => Verdict::Pass,
    }
}

pub(crate) fn after_unload(unloading: ModuleUnload, result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let ModuleUnload { number, entry } = unloading;
    if result == CuResult::SUCCESS {
        accounts.process.compute.first_uses.forget_owner(number);
        gone(&accounts, &entry.0);
    } else {
        accounts.holdings().map.put(number, entry);
    }
}

/// A call that may load what it looks up in a module or a library: that counts, unless the whole module
/// was charged when it was loaded.
pub(crate) fn before_look_up<M>(call: &'static str, module: *mut M) -> Verdict<LookingUp> {
    let accounts = accounts!(Context);
    look_up(&accounts, call, module.number())
}

/// The same for a function, which is a module's.
pub(crate) fn before_load_function(call: &'static str, function: CuFunction) -> Verdict<LookingUp> {
    let accounts = accounts!(Context);
    let module = first_use::owner_of(&accounts, function).or_else(|| query::module_of(function));
    look_up(&accounts, call, module.unwrap_or(0))
}

/// The same for a module or a library, by its handle.
pub(crate) fn look_up(accounts: &Accounts, call: &'static str, module: u64) -> Verdict<LookingUp> {
    let Destination::Device { device, owner } = locate::here(accounts) else {
        return Verdict::Pass;
    };
    let known = module_charges::loaded(accounts, module, owner);
    let is_covered =
        known.is_some_and(|it| it.is_whole) && accounts.holdings().covers_first_use(device);
    Verdict::Call(LookingUp {
        call,
        device,
        before: if is_covered {
            None
        } else {
            measure::before(accounts, device)
        },
        module,
    })
}

pub(crate) fn after_look_up(looking_up: LookingUp, _result: CuResult) {
    let Some(accounts) = standing::opened() else {
        return;
    };
    let LookingUp {
        call,
        device,
        before,
        module,
    } = looking_up;
    charge_first_use(&accounts, call, device, before, module);
}

/// A function was looked up: its code may be loaded at its first launch only.
pub(crate) fn after_get_module_function(
    looking_up: LookingUp,
    result: CuResult,
    out: OutPtr<CuFunction>,
) {
    after_look_up(looking_up, result);
    if let (Some(accounts), CuResult::SUCCESS) = (standing::opened(), result)
        && let Some(function) = out.read()
    {
        let none = core::ptr::null_mut::<()>();
        first_use::function_found(&accounts, function, none, looking_up.module);
    }
}

/// The same of a library's kernel.
pub(crate) fn after_get_kernel(looking_up: LookingUp, result: CuResult, out: OutPtr<CuKernel>) {
    after_look_up(looking_up, result);
    if let (Some(accounts), CuResult::SUCCESS) = (standing::opened(), result)
        && let Some(kernel) = out.read()
    {
        let none = core::ptr::null_mut::<()>();
        first_use::function_given(&accounts, kernel, none, looking_up.module);
    }
}

/// The same of all functions of a module.
pub(crate) fn after_functions(
    looking_up: LookingUp,
    result: CuResult,
    out: OutPtr<CuFunction>,
    count: u32,
) {
    after_look_up(looking_up, result);
    if let (Some(accounts), CuResult::SUCCESS) = (standing::opened(), result) {
        let written = query::function_count(looking_up.module).unwrap_or(0);
        let none = core::ptr::null_mut::<()>();
        for function in listed(out, count.min(written)) {
            first_use::function_found(&accounts, function, none, looking_up.module);
        }
    }
}

/// The same of all kernels of a library.
pub(crate) fn after_kernels(
    looking_up: LookingUp,
    result: CuResult,
    out: OutPtr<CuKernel>,
    count: u32,
) {
    after_look_up(looking_up, result);
    if let (Some(accounts), CuResult::SUCCESS) = (standing::opened(), result) {
        let none = core::ptr::null_mut::<()>();
        let written = query::kernel_count(looking_up.module).unwrap_or(0);
        for kernel in listed(out, count.min(written)) {
            first_use::function_given(&accounts, kernel, none, looking_up.module);
        }
    }
}

/// The handles that the driver has written to an array.
fn listed<A>(out: OutPtr<*mut A>, count: u32) -> impl Iterator<Item = *mut A> {
    (0..count as usize).filter_map(move |at| out.at(at).read())
}

/// A function's code was loaded by `cuFuncLoad`.
pub(crate) fn after_load_function(looking_up: LookingUp, result: CuResult, function: CuFunction) {
    if let (Some(accounts), CuResult::SUCCESS) = (standing::opened(), result) {
        first_use::function_loaded(&accounts, function);
    }
    after_look_up(looking_up, result);
}
