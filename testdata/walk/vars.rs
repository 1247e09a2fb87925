// Frames with variables of Rust's types, standing still in read().
use std::io::Read;

enum Shape {
    Empty,
    Circle(f64),
    Rect { w: u16, h: i32 },
}

#[derive(Clone, Copy)]
struct Point {
    x: i32,
    y: u8,
}

#[inline(never)]
fn stand(text: &str, some: Option<i32>, none: Option<i32>, boxed: Option<Box<i64>>, nothing: Option<Box<i64>>) -> usize {
    let owned = String::from("owned");
    let reference = &owned;
    let vector = vec![1i32, 2, 3];
    let texts = vec![String::from("a"), String::from("b")];
    let none_yet: Vec<String> = Vec::new();
    let slice: &[u16] = &[4, 5];
    let box_text: Box<str> = "in a box".into();
    let some_text = Some(String::from("some"));
    println!("ready");
    let mut b = [0u8; 1];
    let n = std::io::stdin().read(&mut b).unwrap();
    let standard = reference.len() + vector.len() + texts.len() + none_yet.len() + slice.len() + box_text.len() + some_text.map_or(0, |t| t.len());
    n + standard + text.len() + some.unwrap_or(0) as usize + none.unwrap_or(0) as usize + boxed.is_some() as usize + nothing.is_some() as usize
}

#[inline(never)]
fn shapes(a: Shape, b: Shape, c: Shape, flag: bool, letter: char) -> usize {
    let p = Point { x: -3, y: 250 };
    let list = [1u64, 2, 3];
    let tuple = (1i8, 2.5f32);
    let wide: i128 = -170141183460469231731687303715884105728;
    let n = stand("hello \"rust\"", Some(-5), None, Some(Box::new(7)), None);
    let area = |s: &Shape| match s {
        Shape::Empty => 0.0,
        Shape::Circle(r) => r * r,
        Shape::Rect { w, h } => *w as f64 * *h as f64,
    };
    n + (area(&a) + area(&b) + area(&c)) as usize + p.x as usize + p.y as usize + list[1] as usize + tuple.0 as usize + wide as usize + flag as usize + letter as usize
}

fn main() {
    std::process::exit(shapes(Shape::Empty, Shape::Circle(1.5), Shape::Rect { w: 3, h: -4 }, true, 'é') as i32 & 1)
}
