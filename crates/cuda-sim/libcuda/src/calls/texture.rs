//! Textures, surfaces and tensor maps. Kernels do not read through them here, so each is only its description:
//! checked where the driver checks it, kept, and returned.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_api::driver::*;

use crate::base::border::{
    Done, Number, check_out, invalid_if, lock, number, read, write, write_if,
};
use crate::base::table::Table;
use crate::memory::array;
use crate::memory::blocks;
use crate::memory::context;

calls! {
    cuTexObjectDestroy(tex_object) => TEXTURES.end(tex_object as usize);
    cuTexObjectGetResourceDesc(res_desc, tex_object)
        => write(res_desc.cast(), texture(tex_object)?.resource);
    cuTexObjectGetTextureDesc(tex_desc, tex_object) => {
        let told = texture(tex_object)?.texture.ok_or(CuResult::INVALID_VALUE)?;
        write(tex_desc.cast(), told)
    };
    cuTexObjectGetResourceViewDesc(res_view_desc, tex_object) => {
        let told = texture(tex_object)?.view.ok_or(CuResult::INVALID_VALUE)?;
        write(res_view_desc.cast(), told)
    };
    cuSurfObjectDestroy(surf_object) => SURFACES.end(surf_object as usize);
    cuSurfObjectGetResourceDesc(res_desc, surf_object)
        => write(res_desc.cast(), SURFACES.find(surf_object as usize)?.resource);
    cuTexRefCreate(tex_ref) => {
        check_out(tex_ref)?;
        // Numbers that no module's address is. Relaxed: only has to differ from every other.
        let made = NEXT_REFERENCE.fetch_add(1, Ordering::Relaxed);
        lock(&REFERENCES).insert(made, UNSET);
        write(tex_ref, std::ptr::without_provenance_mut(made))
    };
    cuTexRefDestroy(tex_ref) => invalid_if(lock(&REFERENCES).remove(&tex_ref.addr()).is_none());
    cuTexRefSetAddress, cuTexRefSetAddress_v2(byte_offset, tex_ref, ptr, bytes) => {
        let address = number(ptr);
        invalid_if(address != 0 && !blocks::is_reachable(address, number(bytes)))?;
        write_if(byte_offset, 0);
        change(tex_ref, |reference| reference.address = address)
    };
    cuTexRefSetAddress2D, cuTexRefSetAddress2D_v2,
    cuTexRefSetAddress2D_v3(tex_ref, desc, ptr, _pitch) => {
        let (desc, address) = (read(desc)?, number(ptr));
        invalid_if(!blocks::is_reachable(address, 1))?;
        change(tex_ref, |reference| {
            (reference.format, reference.channels) = (desc.format, desc.num_channels as i32);
            reference.address = address;
        })
    };
    cuTexRefSetArray(tex_ref, array, _flags) => {
        invalid_if(array::layout(array).is_err())?;
        change(tex_ref, |reference| reference.array = array.addr())
    };
    cuTexRefSetMipmappedArray(tex_ref, mipmapped_array, _flags) => {
        invalid_if(!array::is_mipmap(mipmapped_array.addr()))?;
        change(tex_ref, |reference| reference.mipmap = mipmapped_array.addr())
    };
    cuTexRefSetFormat(tex_ref, fmt, count_packed_components) => {
        change(tex_ref, |reference| {
            (reference.format, reference.channels) = (fmt, count_packed_components);
        })
    };
    cuTexRefSetFilterMode(tex_ref, fm) => change(tex_ref, |reference| reference.filter = fm);
    cuTexRefSetMipmapFilterMode(tex_ref, fm)
        => change(tex_ref, |reference| reference.mipmap_filter = fm);
    cuTexRefSetMipmapLevelBias(tex_ref, bias)
        => change(tex_ref, |reference| reference.bias = bias);
    cuTexRefSetMipmapLevelClamp(tex_ref, min_mipmap_level_clamp, max_mipmap_level_clamp) => {
        let clamp = (min_mipmap_level_clamp, max_mipmap_level_clamp);
        change(tex_ref, |reference| reference.clamp = clamp)
    };
    cuTexRefSetMaxAnisotropy(tex_ref, max_aniso)
        => change(tex_ref, |reference| reference.anisotropy = max_aniso as i32);
    cuTexRefSetBorderColor(tex_ref, border_color) => {
        let border = read(border_color.cast::<[f32; 4]>())?;
        change(tex_ref, |reference| reference.border = border)
    };
    cuTexRefSetFlags(tex_ref, flags) => change(tex_ref, |reference| reference.flags = flags);
    cuTexRefGetAddress, cuTexRefGetAddress_v2(out, tex_ref)
        => tell(tex_ref, out, |reference| Number::of(reference.address));
    cuTexRefGetArray, cuSurfRefGetArray(array_out, tex_ref) => {
        let handle = |reference: &Reference| std::ptr::without_provenance_mut(reference.array);
        tell(tex_ref, array_out, handle)
    };
    cuTexRefGetMipmappedArray(mipmapped_array_out, tex_ref) => {
        let handle = |reference: &Reference| std::ptr::without_provenance_mut(reference.mipmap);
        tell(tex_ref, mipmapped_array_out, handle)
    };
    cuTexRefGetAddressMode(pam, tex_ref, dim) => {
        let dim = usize::try_from(dim).ok().filter(|dim| *dim <= 2);
        let dim = dim.ok_or(CuResult::INVALID_VALUE)?;
        tell(tex_ref, pam, |reference| reference.address_modes[dim])
    };
    cuTexRefGetFilterMode(pfm, tex_ref) => tell(tex_ref, pfm, |reference| reference.filter);
    cuTexRefGetMipmapFilterMode(pfm, tex_ref)
        => tell(tex_ref, pfm, |reference| reference.mipmap_filter);
    cuTexRefGetMipmapLevelBias(pbias, tex_ref)
        => tell(tex_ref, pbias, |reference| reference.bias);
    cuTexRefGetMaxAnisotropy(pmax_aniso, tex_ref)
        => tell(tex_ref, pmax_aniso, |reference| reference.anisotropy);
    cuTexRefGetBorderColor(border_color, tex_ref)
        => tell(tex_ref, border_color.cast::<[f32; 4]>(), |reference| reference.border);
    cuTexRefGetFlags(flags, tex_ref) => tell(tex_ref, flags, |reference| reference.flags);
    cuTexRefGetFormat(format, count_channels, tex_ref) => {
        tell(tex_ref, format, |reference| reference.format)?;
        tell(tex_ref, count_channels, |reference| reference.channels)
    };
    cuSurfRefSetArray(surf_ref, array, flags) => {
        invalid_if(array::layout(array).is_err() || flags != 0)?;
        change(surf_ref, |reference| reference.array = array.addr())
    };
    cuTensorMapEncodeIm2col(tensor_map, _tensor_data_type, tensor_rank, global_address,
        _global_dim, _global_strides, _pixel_box_lower_corner, _pixel_box_upper_corner,
        _channels_per_pixel, _pixels_per_column, _element_strides, _interleave, _swizzle,
        _l2_promotion, _oob_fill) => {
        invalid_if(tensor_rank < 3)?;
        encode(tensor_map, tensor_rank, global_address)
    };
    cuTensorMapReplaceAddress(tensor_map, global_address) => {
        let words = read(tensor_map.cast::<[u64; 16]>())?;
        encode(tensor_map, words[1] as u32, global_address)
    };
    cuTexObjectCreate(tex_object, res_desc, tex_desc, res_view_desc) => {
        check_out(tex_object)?;
        context::current()?;
        let resource = resource(res_desc)?;
        let texture = Some(read(tex_desc.cast::<Texture>())?);
        let view = read(res_view_desc.cast::<View>()).ok();
        let object = Object { resource, texture, view };
        write(tex_object, TEXTURES.insert(Arc::new(object)) as u64)
    };
    cuSurfObjectCreate(surf_object, res_desc) => {
        check_out(surf_object)?;
        context::current()?;
        let resource = resource(res_desc)?;
        // A surface is of an array only.
        invalid_if(resource.0[0] != 0)?;
        let object = Object { resource, texture: None, view: None };
        write(surf_object, SURFACES.insert(Arc::new(object)) as u64)
    };
    cuTexRefSetAddressMode(tex_ref, dim, am) => {
        let Ok(dim) = usize::try_from(dim) else {
            return Err(CuResult::INVALID_VALUE);
        };
        invalid_if(dim > 2 || am > 3)?;
        change(tex_ref, |reference| reference.address_modes[dim] = am)
    };
    cuTexRefGetMipmapLevelClamp(pmin_mipmap_level_clamp, pmax_mipmap_level_clamp, tex_ref) => {
        tell(tex_ref, pmin_mipmap_level_clamp, |r| r.clamp.0)?;
        tell(tex_ref, pmax_mipmap_level_clamp, |r| r.clamp.1)
    };
    cuTensorMapEncodeTiled(tensor_map, _tensor_data_type, tensor_rank, global_address,
        _global_dim, _global_strides, _box_dim, _element_strides, _interleave, _swizzle,
        _l2_promotion, _oob_fill) => encode(tensor_map, tensor_rank, global_address);
}

/// A description of a resource, a texture, a view: CUDA's bytes, of which only the first is read.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Bytes<const N: usize>([u8; N]);

type Resource = Bytes<144>;

type Texture = Bytes<104>;

type View = Bytes<112>;

#[derive(Clone, Copy)]
struct Object {
    resource: Resource,
    texture: Option<Texture>,
    view: Option<View>,
}

/// A reference: a texture's settings under a name in a module, or made by the program.
#[derive(Clone, Copy)]
struct Reference {
    address: u64,
    array: usize,
    mipmap: usize,
    format: u32,
    channels: i32,
    address_modes: [u32; 3],
    filter: u32,
    mipmap_filter: u32,
    flags: u32,
    anisotropy: i32,
    bias: f32,
    clamp: (f32, f32),
    border: [f32; 4],
}

const FLOAT: u32 = 0x20;
const CLAMP: u32 = 1;
const UNSET: Reference = Reference {
    address: 0,
    array: 0,
    mipmap: 0,
    format: FLOAT,
    channels: 1,
    address_modes: [CLAMP; 3],
    filter: 0,
    mipmap_filter: 0,
    flags: 0,
    anisotropy: 0,
    bias: 0.0,
    clamp: (0.0, 0.0),
    border: [0.0; 4],
};

static TEXTURES: Table<Object> = Table::new(CuResult::INVALID_VALUE);
static SURFACES: Table<Object> = Table::new(CuResult::INVALID_VALUE);
static REFERENCES: Mutex<BTreeMap<usize, Reference>> = Mutex::new(BTreeMap::new());
static NEXT_REFERENCE: AtomicUsize = AtomicUsize::new(1);

/// Reads a resource's description, and checks that its objects exist.
fn resource(from: *const c_void) -> Done<Resource> {
    let bytes = read(from.cast::<Resource>())?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes.0[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let kind = u32::from_le_bytes([bytes.0[0], bytes.0[1], bytes.0[2], bytes.0[3]]);
    let (named, size) = (word(8), word(24));
    let is_there = match kind {
        0 => array::layout(std::ptr::without_provenance_mut(named as usize)).is_ok(),
        1 => array::is_mipmap(named as usize),
        2 => blocks::is_reachable(named, size.max(1)),
        3 => blocks::is_reachable(named, 1),
        _ => false,
    };
    invalid_if(!is_there)?;
    Ok(bytes)
}

// --- objects ----------------------------------------------------------------------------------------

fn texture(object: u64) -> Done<Object> {
    Ok(*TEXTURES.find(object as usize)?)
}

// --- references -------------------------------------------------------------------------------------

/// Changes a reference; a module's own begins unset.
fn change<R>(reference: *mut R, body: impl FnOnce(&mut Reference)) -> Done {
    check_out(reference)?;
    body(lock(&REFERENCES).entry(reference.addr()).or_insert(UNSET));
    Ok(())
}

fn tell<R, T>(reference: *mut R, out: *mut T, body: impl FnOnce(&Reference) -> T) -> Done {
    check_out(reference)?;
    let told = body(lock(&REFERENCES).get(&reference.addr()).unwrap_or(&UNSET));
    write(out, told)
}

// --- tensor maps ------------------------------------------------------------------------------------

/// The driver's 128 bytes, opaque to programs: ours hold the address, for `ReplaceAddress`.
fn encode(map: *mut c_void, rank: u32, address: *mut c_void) -> Done {
    const ALIGNMENT: usize = 16;
    let known = blocks::is_reachable(address.addr() as u64, 1);
    invalid_if(!(1..=5).contains(&rank) || !address.addr().is_multiple_of(ALIGNMENT) || !known)?;
    let mut words = [0_u64; 16];
    (words[0], words[1]) = (address.addr() as u64, rank.into());
    write(map.cast(), words)
}
