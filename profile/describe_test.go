package profile

import "testing"

func TestAmount(t *testing.T) {
	ns := &Profile{Meta: Meta{ByValue: true, Value: ValueType{"off-cpu", "nanoseconds"}}}
	bytes := &Profile{Meta: Meta{ByValue: true, Value: ValueType{"inuse_space", "bytes"}}}
	counts := &Profile{Meta: Meta{Value: ValueType{"cpu", "nanoseconds"}}}
	for _, test := range []struct {
		p    *Profile
		n    int64
		want string
	}{
		{ns, 0, "0 ns"}, {ns, 999, "999 ns"}, {ns, 1000, "1.00 µs"}, {ns, 12_345, "12.3 µs"}, {ns, 999_600, "1.00 ms"},
		{ns, 123_456_789, "123 ms"}, {ns, 9_996_000_000, "10.0 s"}, {ns, 99_960_000_000, "100 s"}, {ns, 3_725_000_000_000, "1 h 2 min"},
		{bytes, 1023, "1023 B"}, {bytes, 1536, "1.5 KiB"}, {bytes, 3 << 30, "3.0 GiB"}, {bytes, 5 << 40, "5.0 TiB"},
		{counts, 1234, "1,234"},
	} {
		if got := test.p.Amount(test.n); got != test.want {
			t.Errorf("%d: %s, want %s", test.n, got, test.want)
		}
	}
}
