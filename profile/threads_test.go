package profile

import (
	"math/rand/v2"
	"testing"
)

// Threads that differ in one thing only have numbers of their own, counted from
// 0 in the order in which they are met.
func TestThreadTable(t *testing.T) {
	var tt threadTable
	numbers := map[Thread]uint32{}
	rng := rand.New(rand.NewPCG(1, 2))
	names := []string{"", "a", "b", "aaaaaaaaaaaaaaa", "aaaaaaaaaaaaaab"}
	for range 20000 {
		th := Thread{PID: rng.Int32N(40), TID: rng.Int32N(40), Comm: Comm(names[rng.IntN(len(names))]), Labels: rng.Uint32N(3)}
		want, known := numbers[th]
		if !known {
			want = uint32(len(numbers))
			numbers[th] = want
		}
		if got := tt.number(&th); got != want || tt.all[got] != th {
			t.Fatalf("%+v is number %d, want %d", th, got, want)
		}
	}
	if len(tt.all) != len(numbers) || len(tt.all) < 5000 {
		t.Errorf("%d threads, want %d", len(tt.all), len(numbers))
	}
}
