// Calls, closures, strings, JSON and sorting; once before it is judged.
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

function work() {
	let sum = 0;
	for (let i = 0; i < 40; i++) {
		const o = JSON.parse(JSON.stringify({ a: i, b: [1, 2, { x: 'y'.repeat(i) }] }));
		sum += o.b.length + fib(8);
		sum += [3, 1, 2].map(x => x * i).sort().length;
		sum += 'aaab'.repeat(i).replace(/a+b/g, 'x').length;
	}
	return sum;
}

work();
process.ppid;
console.log(work());
