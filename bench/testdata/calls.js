// calls.js SECONDS: closures that call each other, fourteen deep, and make garbage.
const odd = [], even = []
for (let i = 0; i < 14; i++) {
  odd[i] = i == 0 ? x => x * 3 + 1 : x => (x & 1) ? odd[i - 1](x + 1) + 1 : even[i - 1]({ v: x }).v
  even[i] = o => ({ v: i == 0 ? o.v | 0 : odd[i - 1]((o.v >> 1) + JSON.stringify(o).length) })
}
const end = Date.now() + 1000 * process.argv[2]
let x = 1
while (Date.now() < end) {
  for (let i = 0; i < 1000; i++) x = (x + odd[13](x)) | 0
}
console.log(x)
