// Kernels in Rust, compiled without `core` so that no library for the target is needed. The first part
// stands in for `core`: what the compiler asks for by name. make_ptx.py says how the PTX was made.
#![feature(no_core, lang_items, auto_traits, arbitrary_self_types, intrinsics, rustc_attrs)]
#![feature(abi_ptx, link_llvm_intrinsics)]
#![no_core]
#![no_std]
#![crate_type = "lib"]
#![allow(internal_features, improper_ctypes_definitions)]

#[lang = "pointee_sized"] pub trait PointeeSized {}
#[lang = "meta_sized"] pub trait MetaSized: PointeeSized {}
#[lang = "sized"] pub trait Sized: MetaSized {}
#[lang = "copy"] pub trait Copy {}
#[lang = "legacy_receiver"] pub trait LegacyReceiver {}
#[lang = "freeze"] pub unsafe auto trait Freeze {}
#[lang = "sync"] pub unsafe trait Sync {}
#[lang = "destruct"] pub trait Destruct {}
#[lang = "drop_in_place"] unsafe fn drop_in_place<T: ?Sized>(_: *mut T) {}
impl<T: PointeeSized> LegacyReceiver for &T {}
impl<T: PointeeSized> Copy for *const T {}
impl<T: PointeeSized> Copy for *mut T {}

macro_rules! operator {
    ($lang:literal, $trait:ident, $method:ident, $op:tt, $($type:ty),*) => {
        #[lang = $lang] pub trait $trait<R = Self> { type Output; fn $method(self, r: R) -> Self::Output; }
        $(impl $trait for $type { type Output = $type; fn $method(self, r: $type) -> $type { self $op r } })*
    };
}
macro_rules! scalar {
    ($($type:ty),*) => { $(
        impl Copy for $type {}
        impl PartialEq for $type {
            fn eq(&self, o: &$type) -> bool { *self == *o }
            fn ne(&self, o: &$type) -> bool { *self != *o }
        }
        impl PartialOrd for $type {
            fn lt(&self, o: &$type) -> bool { *self < *o }
            fn le(&self, o: &$type) -> bool { *self <= *o }
            fn gt(&self, o: &$type) -> bool { *self > *o }
            fn ge(&self, o: &$type) -> bool { *self >= *o }
        }
    )* };
}
#[lang = "eq"] pub trait PartialEq<R: ?Sized = Self> {
    fn eq(&self, o: &R) -> bool;
    fn ne(&self, o: &R) -> bool;
}
#[lang = "partial_ord"] pub trait PartialOrd<R: ?Sized = Self> {
    fn lt(&self, o: &R) -> bool;
    fn le(&self, o: &R) -> bool;
    fn gt(&self, o: &R) -> bool;
    fn ge(&self, o: &R) -> bool;
}
scalar!(i32, u32, f32, usize);
operator!("add", Add, add, +, i32, u32, f32);
operator!("sub", Sub, sub, -, i32);
operator!("mul", Mul, mul, *, i32, u32, f32);
operator!("bitand", BitAnd, bitand, &, i32, u32);
operator!("bitxor", BitXor, bitxor, ^, i32);
operator!("shr", Shr, shr, >>, u32);
impl Copy for bool {}
#[lang = "panic_location"] struct Location<'a> { _file: &'a str, _line: u32, _column: u32 }
#[lang = "panic"] #[track_caller] fn panic(_: &'static str) -> ! { loop {} }
#[lang = "panic_const_add_overflow"] #[track_caller] fn add_overflow() -> ! { loop {} }
#[lang = "panic_const_sub_overflow"] #[track_caller] fn sub_overflow() -> ! { loop {} }
#[lang = "panic_const_mul_overflow"] #[track_caller] fn mul_overflow() -> ! { loop {} }
#[lang = "panic_const_shr_overflow"] #[track_caller] fn shr_overflow() -> ! { loop {} }
#[rustc_intrinsic] pub const unsafe fn offset<P, D>(p: P, d: D) -> P;

extern "C" {
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.x"] fn thread_index() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ntid.x"] fn block_size() -> i32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.x"] fn block_index() -> i32;
}

#[inline(never)]
fn collatz(mut n: u32) -> i32 {
    let mut steps = 0i32;
    while n > 1u32 {
        steps = steps + 1;
        n = if (n & 1) == 1u32 { n * 3u32 + 1u32 } else { n >> 1u32 };
    }
    steps
}

#[repr(C)]
pub struct Pair {
    factor: f32,
    table: [i32; 4],
}

#[no_mangle]
pub unsafe extern "ptx-kernel" fn dispatch(code: *const i32, x: *const i32, out: *mut i32, n: i32, p: Pair) {
    let i = block_index() * block_size() + thread_index();
    if i >= n {
        return;
    }
    let v = *offset(x, i as usize);
    let o = offset(out, i as usize);
    let flag = offset(out, (n + i) as usize);
    match *offset(code, i as usize) {
        0 => *o = v + 7,
        1 => { *o = v * v; *flag = 1 }
        2 => *o = v ^ 0x55,
        3 => *o = collatz(v as u32),
        4 => { *o = v - 3; *flag = 2 }
        5 => *o = *offset(&p.table as *const [i32; 4] as *const i32, (v & 3) as usize),
        6 => *o = (p.factor * (v as f32)) as i32,
        _ => *o = 0 - 1,
    }
}
