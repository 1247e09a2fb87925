// Rust of its own, without the standard library: each function is compiled with
// the flags under test.
#![no_std]
#![no_main]
use core::arch::{asm, global_asm};
use core::mem::MaybeUninit;
use core::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};

static mut SINK: i64 = 0;

fn sink(x: i64) { unsafe { write_volatile(addr_of_mut!(SINK), read_volatile(addr_of!(SINK)).wrapping_add(x)) } }

#[inline(never)]
fn leaf(a: i64, b: i64) -> i64 { a.wrapping_mul(31).wrapping_add(b ^ a >> 3) }

#[inline(never)]
fn fib(n: i64) -> i64 { if n < 2 { n } else { fib(n - 1) + fib(n - 2) } }

#[inline(never)]
fn many(a: i64, b: i64, c: i64, d: i64, e: i64, f: i64, g: i64, h: i64) -> i64 {
    leaf(a, b).wrapping_add(leaf(c, d)).wrapping_mul(leaf(e, f)).wrapping_sub(leaf(g, h))
}

#[inline(never)]
fn large(n: i64) -> i64 {
    let mut big = MaybeUninit::<[u8; 3000]>::uninit();
    let first = big.as_mut_ptr() as *mut u8;
    unsafe {
        write_volatile(first.add(n as usize), n as u8);
        leaf(read_volatile(first.add(n as usize)) as i64, n)
    }
}

trait Shape { fn area(&self) -> i64; }
struct Square(i64);
struct Strip(i64, i64);
impl Shape for Square {
    #[inline(never)]
    fn area(&self) -> i64 { self.0.wrapping_mul(self.0) }
}
impl Shape for Strip {
    #[inline(never)]
    fn area(&self) -> i64 { leaf(self.0, self.1) }
}

struct Guard(i64);
impl Drop for Guard {
    #[inline(never)]
    fn drop(&mut self) { sink(self.0) }
}

#[inline(never)]
fn guarded(n: i64) -> Option<i64> {
    let _g = Guard(n);
    if n % 3 == 0 { return None }
    let _h = Guard(leaf(n, n));
    Some(fib(n % 5))
}

#[inline(never)]
fn apply(f: &dyn Fn(i64) -> i64, n: i64) -> i64 { if n == 0 { 0 } else { f(n).wrapping_add(apply(f, n - 1)) } }

#[inline(never)]
fn work() {
    let shapes: [&dyn Shape; 3] = [&Square(3), &Strip(4, 5), &Square(7)];
    for n in 0..6 {
        for s in &shapes { sink(s.area()) }
        sink(apply(&|x| leaf(x, n), n));
        sink(guarded(n).unwrap_or(-1));
        sink(many(n, 1, 2, 3, 4, 5, 6, 7).wrapping_add(large(n)));
    }
}

global_asm!(".globl _start", "_start: xor %ebp, %ebp", "and $-16, %rsp", "call begin", "hlt", options(att_syntax));

#[no_mangle]
extern "C" fn begin() -> ! {
    work();
    unsafe { asm!("syscall", in("rax") 231, in("rdi") 0, options(noreturn)) }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
