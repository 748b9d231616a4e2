//! The driver API as its callers see it. The words are in `driver_types.rs`, the structures in `driver_structs.rs`,
//! the rows in `driver_table.rs`; this file has the signatures made from them. Calls nothing.

pub use crate::driver_structs::*;
pub use crate::driver_types::*;

/// Captures a graph again.
pub type CuGraphRecaptureCallback = Option<
    unsafe extern "C-unwind" fn(
        *mut c_void,
        CuGraphNode,
        *const CuGraphNodeParams,
        *const CuGraphNodeParams,
        u32,
    ) -> CuResult,
>;

/// Each row as a type with its own name: `signature::cuMemAlloc_v2` is the type of a pointer to that function, so
/// that an implementation or a cast that differs from its row does not compile.
#[allow(
    non_camel_case_types,
    reason = "named as the driver names its functions"
)]
pub mod signature {
    use super::*;

    macro_rules! signatures {
        ($(fn $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
            #[doc = concat!("A pointer to `", stringify!($name), "`.")]
            pub type $name = unsafe extern "C-unwind" fn($($arg: $ty),*) -> CuResult;
        )*};
    }

    crate::driver_functions!(signatures);
}
