//! Hooks, and how one is made: the macro that exports a function of the driver with the rule that runs before its
//! call and the rule that runs after it. Between the two only the genuine function runs, and nothing of the library
//! is alive, because an exception, a cancelled thread or a `longjmp` may leave through it. Tables of names are made
//! when this is compiled.

use core::ffi::{CStr, c_void};

/// One exported function.
pub(crate) struct Hook {
    /// Its name.
    pub(crate) name: &'static CStr,
    /// Its own address.
    pub(crate) address: *const c_void,
    /// The row of the genuine function in its library's table.
    pub(crate) row: usize,
}

// SAFETY: the address is that of a function: it is never written through and never goes away.
unsafe impl Sync for Hook {}

/// The answer of the first look at a call that most often goes to the driver at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateAnswer {
    /// It goes to the driver.
    Passes,
    /// It goes to the driver if the thread has the credit for it, which the second rule says.
    PassesIfPaid,
    /// The rules before and after it run.
    Closed,
}

/// Exports functions and lists them in `HOOKS`. In the braces: the rule before, the rule after, each
/// with the arguments that it takes, or `_` for none. The rule before answers with a
/// [`crate::guest::manners::Verdict`]; the rule after gets what that carried, the driver's result and its
/// arguments, and answers nothing or `Some(result)`. Behind `at once` stand short rules that run without our manners
/// ([`crate::guest::manners::at_once`]). A row whose signature differs from
/// `cuda_api`'s does not compile.
///
/// Behind `if` stand two short rules that decide whether the call goes to the driver at once, with nothing of the
/// library around it. The first answers with a [`GateAnswer`]. The second runs only after [`GateAnswer::PassesIfPaid`].
///
/// A row with two names exports two functions: the second is the one whose default stream is the thread's own
/// (`_ptsz`). In the braces the word after the type of the results is the default stream of the function that is
/// called ([`crate::guest::border::DefaultStream`]).
macro_rules! hooks {
    (
        $library:ident -> $ret:ty, $default:ident;
        $($(#[$doc:meta])* fn $name:ident $args:tt $(and $twin:ident)? => $rule:tt)*
    ) => {
        $(
            crate::driver::hook::exported! {
                $(#[$doc])*
                $library -> $ret, $default = Legacy; $name $args $rule
            }
            $(crate::driver::hook::exported! {
                #[doc = concat!("As [`", stringify!($name), "`]; its default stream is the thread's own.")]
                $library -> $ret, $default = PerThread; $twin $args $rule
            })?
        )*

        /// The functions of this table.
        pub(crate) static HOOKS: &[crate::driver::hook::Hook] = &[$(
            crate::driver::hook::listed!($library $name),
            $(crate::driver::hook::listed!($library $twin),)?
        )*];

        /// Their names, in the same order.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name), $(stringify!($twin),)?)*];
    };
}
pub(crate) use hooks;

/// One exported function.
macro_rules! exported {
    (
        $(#[$doc:meta])*
        $library:ident -> $ret:ty, $default:ident = $kind:ident;
        $name:ident ($($arg:ident: $ty:ty),* $(,)?) { $($rule:tt)* }
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As the vendor's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case, reason = "named as in C")]
        #[allow(clippy::too_many_arguments, reason = "the C signature")]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            #[allow(unused_variables, reason = "few functions take a stream")]
            let $default = crate::guest::border::$kind;
            crate::driver::hook::body!($library -> $ret, $default = $kind; $name ($($arg: $ty),*) $($rule)*)
        }

        const _: crate::driver::genuine::$library::signature::$name = $name;
    };
}
pub(crate) use exported;

/// The body of an exported function.
macro_rules! body {
    // Each of the three ways is a function of its own, so that this one needs no stack.
    (
        $library:ident -> $ret:ty, $default:ident = $kind:ident; $name:ident ($($arg:ident: $ty:ty),*)
        if $($look:ident)::+ ($($l:expr),* $(,)?) or $($pass:ident)::+ ($($p:expr),* $(,)?);
        $($rule:tt)*
    ) => {{
        #[inline(never)]
        unsafe extern "C-unwind" fn if_paid($($arg: $ty),*) -> $ret {
            let $default = crate::guest::border::$kind;
            let next = match crate::driver::genuine::$library::known::$name() {
                Some(real) if $($pass)::+($(crate::guest::border::given!($p)),*) => real,
                _ => with_rules,
            };
            // SAFETY: the caller's own arguments.
            unsafe { next($($arg),*) }
        }

        #[cold]
        #[inline(never)]
        unsafe extern "C-unwind" fn with_rules($($arg: $ty),*) -> $ret {
            let $default = crate::guest::border::$kind;
            crate::driver::hook::way!($library $name ($($arg),*) $($rule)*)
        }

        // One call for the three ways: the compiler makes a jump of it, and leaves the arguments where they are. It
        // does so for one such call in a function, not for three.
        let next = match crate::driver::genuine::$library::known::$name() {
            Some(real) => match $($look)::+($(crate::guest::border::given!($l)),*) {
                crate::driver::hook::GateAnswer::Passes => real,
                crate::driver::hook::GateAnswer::PassesIfPaid => if_paid,
                crate::driver::hook::GateAnswer::Closed => with_rules,
            },
            None => with_rules,
        };
        // SAFETY: the caller's own arguments.
        unsafe { next($($arg),*) }
    }};
    (
        $library:ident -> $ret:ty, $default:ident = $kind:ident; $name:ident ($($arg:ident: $ty:ty),*)
        $($rule:tt)*
    ) => {
        crate::driver::hook::way!($library $name ($($arg),*) $($rule)*)
    };
}
pub(crate) use body;

/// Its entry in the table.
macro_rules! listed {
    ($library:ident $name:ident) => {
        crate::driver::hook::Hook {
            name: crate::driver::genuine::c_name(concat!(stringify!($name), "\0")),
            address: $name as *const core::ffi::c_void,
            row: crate::driver::genuine::$library::Row::$name as usize,
        }
    };
}
pub(crate) use listed;

/// The way of one call: before, the driver, after.
macro_rules! way {
    ($library:ident $name:ident ($($arg:ident),*)
        $($before:ident)::+ ($($b:expr),* $(,)?), $($after:ident)::+ ($($a:expr),* $(,)?)
    ) => {{
        let mut verdict = crate::guest::manners::Verdict::Pass;
        crate::guest::manners::before(&mut verdict, move || $($before)::+($(crate::guest::border::given!($b)),*));
        // By reference: a copy would read again what was written a moment ago, in other pieces.
        match &verdict {
            crate::guest::manners::Verdict::Call(carried) => {
                // SAFETY: the caller's own arguments.
                let result = unsafe { crate::driver::genuine::$library::$name($($arg),*) };
                crate::guest::manners::after(result, || $($after)::+(*carried, result $(, crate::guest::border::given!($a))*))
            }
            // SAFETY: the caller's own arguments.
            crate::guest::manners::Verdict::Pass => unsafe { crate::driver::genuine::$library::$name($($arg),*) },
            crate::guest::manners::Verdict::Refuse(result) => *result,
        }
    }};
    // First tries both rules in this function's own frame. Without an answer of the first, or if the second returns
    // false, the other two decide.
    ($library:ident $name:ident ($($arg:ident),*)
        at once $($take:ident)::+ ($($t:expr),* $(,)?), $($settle:ident)::+ ($($s:expr),* $(,)?);
        $($before:ident)::+ ($($b:expr),* $(,)?), $($after:ident)::+ ($($a:expr),* $(,)?)
        $(, $($rest:tt)+)?
    ) => {{
        if let Some(carried) = $($take)::+($(crate::guest::border::given!($t)),*) {
            // SAFETY: the caller's own arguments.
            let result = unsafe { crate::driver::genuine::$library::$name($($arg),*) };
            if $($settle)::+(carried, result $(, crate::guest::border::given!($s))*) {
                return result;
            }
            return crate::guest::manners::after(result, || $($after)::+(carried.into(), result $(, crate::guest::border::given!($a))*));
        }
        crate::driver::hook::way!($library $name ($($arg),*)
            $($before)::+ ($($b),*), $($after)::+ ($($a),*) $(, $($rest)+)?)
    }};
    // If the third rule returns true for the carried value, another function of the driver is called in place of this
    // one.
    ($library:ident $name:ident ($($arg:ident),*)
        $($before:ident)::+ ($($b:expr),* $(,)?), $($after:ident)::+ ($($a:expr),* $(,)?),
        $($instead:ident)::+ => $other:ident ($($o:expr),* $(,)?)
    ) => {{
        let mut verdict = crate::guest::manners::Verdict::Pass;
        crate::guest::manners::before(&mut verdict, move || $($before)::+($(crate::guest::border::given!($b)),*));
        // By reference: a copy would read again what was written a moment ago, in other pieces.
        match &verdict {
            crate::guest::manners::Verdict::Call(carried) => {
                let result = if $($instead)::+(carried) {
                    // SAFETY: made of the caller's own arguments.
                    unsafe { crate::driver::genuine::$library::$other($($o),*) }
                } else {
                    // SAFETY: the caller's own arguments.
                    unsafe { crate::driver::genuine::$library::$name($($arg),*) }
                };
                crate::guest::manners::after(result, || $($after)::+(*carried, result $(, crate::guest::border::given!($a))*))
            }
            // SAFETY: the caller's own arguments.
            crate::guest::manners::Verdict::Pass => unsafe { crate::driver::genuine::$library::$name($($arg),*) },
            crate::guest::manners::Verdict::Refuse(result) => *result,
        }
    }};
    ($library:ident $name:ident ($($arg:ident),*)
        $($before:ident)::+ ($($b:expr),* $(,)?), _
    ) => {{
        let mut verdict = crate::guest::manners::Verdict::<(), _>::Pass;
        crate::guest::manners::before(&mut verdict, move || $($before)::+($(crate::guest::border::given!($b)),*));
        match verdict {
            crate::guest::manners::Verdict::Call(()) | crate::guest::manners::Verdict::Pass => {
                // SAFETY: the caller's own arguments.
                unsafe { crate::driver::genuine::$library::$name($($arg),*) }
            }
            crate::guest::manners::Verdict::Refuse(result) => result,
        }
    }};
    ($library:ident $name:ident ($($arg:ident),*)
        _, $($after:ident)::+ ($($a:expr),* $(,)?)
    ) => {{
        // SAFETY: the caller's own arguments.
        let result = unsafe { crate::driver::genuine::$library::$name($($arg),*) };
        crate::guest::manners::after(result, move || $($after)::+(result $(, crate::guest::border::given!($a))*))
    }};
}
pub(crate) use way;

/// Are the two names the same?
#[allow(clippy::indexing_slicing, reason = "bounded by the loop's condition")]
pub(crate) const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Is the name one of those that the table was made of?
#[allow(
    clippy::indexing_slicing,
    reason = "evaluated by the compiler: a wrong index does not compile"
)]
pub(crate) const fn contains(index: &[u16], names: &[&str], name: &[u8]) -> bool {
    let mut at = hash(name);
    loop {
        let entry = index[at % index.len()];
        if entry == 0 {
            return false;
        }
        if is_same(names[entry as usize - 1].as_bytes(), name) {
            return true;
        }
        at += 1;
    }
}

/// An open-addressed table from name to number (plus one), at most half full.
#[allow(
    clippy::indexing_slicing,
    reason = "evaluated by the compiler: a wrong index does not compile"
)]
pub(crate) const fn index<const SLOTS: usize>(names: &[&str]) -> [u16; SLOTS] {
    assert!(names.len() * 2 <= SLOTS, "the table of names is too small");
    let mut table = [0; SLOTS];
    let mut number = 0;
    while number < names.len() {
        insert(&mut table, names[number].as_bytes(), number);
        number += 1;
    }
    table
}

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated by the compiler: a wrong index does not compile"
)]
#[allow(
    clippy::cast_possible_truncation,
    reason = "there are fewer than 65,535 names"
)]
pub(crate) const fn insert(table: &mut [u16], name: &[u8], number: usize) {
    let mut at = hash(name);
    while table[at % table.len()] != 0 {
        at += 1;
    }
    table[at % table.len()] = number as u16 + 1;
}

#[allow(clippy::indexing_slicing, reason = "bounded by the loop's condition")]
#[allow(clippy::cast_possible_truncation, reason = "24 bits")]
pub(crate) const fn hash(name: &[u8]) -> usize {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut at = 0;
    while at < name.len() {
        hash = (hash ^ name[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    (hash >> 40) as usize
}
