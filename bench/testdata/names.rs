// Uses much of the standard library, for many inlined calls and long names.
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

trait Shape {
    fn area(&self, scale: f64) -> f64;
}
struct Square<T>(T);
impl<T: Into<f64> + Copy> Shape for Square<T> {
    fn area(&self, scale: f64) -> f64 {
        let side: f64 = self.0.into();
        side * side * scale
    }
}

fn words(text: &str) -> HashSet<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
}

fn main() {
    let mut index: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, a) in std::env::args().collect::<Vec<_>>().into_iter().cycle().take(50).enumerate() {
        let mut key = String::new();
        write!(key, "{a}-{i:04x}").unwrap();
        index.entry(key).or_default().push(i);
    }
    let shapes: Vec<Box<dyn Shape>> = vec![Box::new(Square(3f32)), Box::new(Square(7u8))];
    let total: f64 = shapes.iter().zip(index.values()).map(|(s, v)| s.area(v.len() as f64)).sum();
    let mut sorted: Vec<_> = index.keys().flat_map(|k| words(k)).collect();
    sorted.sort_by(|a, b| b.cmp(a));
    sorted.dedup();
    let counts: HashMap<usize, usize> = sorted.iter().fold(HashMap::new(), |mut m, w| {
        *m.entry(w.len()).or_default() += 1;
        m
    });
    println!("{total} {counts:?} {:?}", sorted.first());
}
