// Closures, iterators, formatting, and a panic that is caught.
use std::collections::BTreeMap;

#[inline(never)]
fn fib(n: u32) -> u64 { if n < 2 { n as u64 } else { fib(n - 1) + fib(n - 2) } }

#[inline(never)]
fn risky(n: u32) -> u32 {
    let v: Vec<u32> = (0..n).collect();
    if n == 0 { panic!("at the bottom") }
    v.len() as u32 + risky(n - 1)
}

fn main() {
    let _ = std::os::unix::process::parent_id();
    std::panic::set_hook(Box::new(|_| {}));
    let mut m = BTreeMap::new();
    for i in 0..12u64 { *m.entry(format!("key{}", i % 5)).or_insert(0) += fib(i as u32 % 7); }
    let caught = std::panic::catch_unwind(|| risky(3)).is_err();
    let mut words: Vec<&String> = m.keys().collect();
    words.sort_by(|a, b| b.cmp(a));
    println!("{} {} {:?}", m.values().sum::<u64>(), caught, words);
}
