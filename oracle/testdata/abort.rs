// What work.rs does, without a panic: for code that cannot unwind.
use std::collections::BTreeMap;

#[inline(never)]
fn fib(n: u32) -> u64 { if n < 2 { n as u64 } else { fib(n - 1) + fib(n - 2) } }

#[inline(never)]
fn early(n: u32, f: &dyn Fn(u32) -> u64) -> u64 {
    if n == 0 { return 1 }
    let v: Vec<u64> = (0..n).map(|i| f(i)).collect();
    v.iter().sum::<u64>() + early(n - 1, f)
}

fn main() {
    let _ = std::os::unix::process::parent_id();
    let mut m = BTreeMap::new();
    for i in 0..12u64 { *m.entry(format!("key{}", i % 5)).or_insert(0) += fib(i as u32 % 7); }
    let mut words: Vec<&String> = m.keys().collect();
    words.sort_by(|a, b| b.cmp(a));
    println!("{} {} {:?}", m.values().sum::<u64>(), early(6, &|i| fib(i)), words);
}
