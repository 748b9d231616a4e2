//! The words of NVML: return codes, handles and constants. Structures and signatures are made of them.

use core::ffi::CStr;

pub use core::ffi::{c_char, c_ulong, c_void};

/// The result of an NVML function. A newtype rather than an enum, because the next driver may return a code that is
/// unknown here, and the caller must get it unchanged.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub struct NvmlReturn(pub u32);

macro_rules! returns {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl NvmlReturn {
            $(#[doc = $text] pub const $name: NvmlReturn = NvmlReturn($code);)*

            /// The code's text, worded as the real library words it; `None` for a code unknown here.
            #[must_use]
            pub fn text(self) -> Option<&'static CStr> {
                match self.0 {
                    $($code => CStr::from_bytes_until_nul(concat!($text, "\0").as_bytes()).ok(),)*
                    _ => None,
                }
            }
        }
    };
}

returns! {
    SUCCESS = 0, "Success";
    UNINITIALIZED = 1, "Uninitialized";
    INVALID_ARGUMENT = 2, "Invalid Argument";
    NOT_SUPPORTED = 3, "Not Supported";
    NO_PERMISSION = 4, "Insufficient Permissions";
    ALREADY_INITIALIZED = 5, "Already Initialized";
    NOT_FOUND = 6, "Not Found";
    INSUFFICIENT_SIZE = 7, "Insufficient Size";
    INSUFFICIENT_POWER = 8, "Insufficient External Power";
    DRIVER_NOT_LOADED = 9, "Driver Not Loaded";
    TIMEOUT = 10, "Timeout";
    IRQ_ISSUE = 11, "Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12, "NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13, "Function Not Found";
    CORRUPTED_INFOROM = 14, "Corrupted infoROM";
    GPU_IS_LOST = 15, "GPU is lost";
    RESET_REQUIRED = 16, "GPU requires reset";
    OPERATING_SYSTEM = 17, "GPU access blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = 18, "Driver/library version mismatch";
    IN_USE = 19, "In use by another client";
    MEMORY = 20, "Insufficient Memory";
    NO_DATA = 21, "No data";
    VGPU_ECC_NOT_SUPPORTED = 22, "vGPU operation not available on target device, because ECC is enabled";
    INSUFFICIENT_RESOURCES = 23, "Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24, "Frequency is not supported";
    ARGUMENT_VERSION_MISMATCH = 25, "The provided version is invalid/unsupported";
    DEPRECATED = 26, "Deprecated";
    NOT_READY = 27, "The system is not ready for the request";
    GPU_NOT_FOUND = 28, "No GPUs were found";
    INVALID_STATE = 29, "Resource not in correct state to perform requested operation";
    UNKNOWN = 999, "Unknown Error";
}

impl NvmlReturn {
    /// True for success.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == Self::SUCCESS.0
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The handle that names nothing.
            pub const NULL: $name = $name(core::ptr::null_mut());

            /// True for the handle that names nothing.
            #[must_use]
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }
    )*};
}

handles! {
    /// A GPU, or a MIG device of one.
    NvmlDevice;
    /// A GPU instance: a part of a GPU in MIG mode.
    NvmlGpuInstance;
    /// A compute instance of a GPU instance.
    NvmlComputeInstance;
    /// A set of events that a program waits for.
    NvmlEventSet;
}

/// The version word that versioned structures carry: the structure's size with its version above.
#[must_use]
pub const fn struct_version<T>(version: u32) -> u32 {
    // No structure here is close to 2^24 bytes, the largest size that the word can hold.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "sizes of C structures, a few hundred bytes"
    )]
    let size = size_of::<T>() as u32;
    size | (version << 24)
}

/// In a process list: the driver cannot say how much memory a process uses.
pub const VALUE_NOT_AVAILABLE: u64 = u64::MAX;
/// In a process list: the process runs on no GPU instance or compute instance.
pub const NO_INSTANCE: u32 = u32::MAX;
/// In memory limits: the size of the device, which is no limit.
pub const MEMORY_LIMIT_MAX: u64 = u64::MAX;
/// A UUID as text.
pub const UUID_ASCII: u32 = 1;
/// A UUID as its 16 bytes.
pub const UUID_BINARY: u32 = 2;
