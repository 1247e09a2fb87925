package main

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestBytesValue(t *testing.T) {
	for s, want := range map[string]int{
		"1": 1, "65536": 65536, "64K": 65536, "64k": 65536, "64KiB": 65536,
		"64KB": 65536, "1M": 1 << 20, "1G": 1 << 30, "2147483647": 1<<31 - 1,
	} {
		var v bytesValue
		if err := v.Set(s); err != nil || int(v) != want {
			t.Errorf("%q: %d, %v; want %d", s, v, err, want)
		}
		var again bytesValue
		if err := again.Set(v.String()); err != nil || again != v {
			t.Errorf("%q prints as %q, which reads as %d, %v", s, v.String(), again, err)
		}
	}
	for _, s := range []string{"", "0", "0K", "K", "-1", "1.5K", "2G", "64X", "K64", "99999999999"} {
		var v bytesValue
		if err := v.Set(s); err == nil {
			t.Errorf("%q was taken as %d", s, v)
		}
	}
}

func TestDurationValue(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"10": 10 * time.Second, "1.5": 1500 * time.Millisecond, "2m": 2 * time.Minute, "250ms": 250 * time.Millisecond,
		"1e30": 1<<63 - 1<<10,
	} {
		var v durationValue
		if err := v.Set(s); err != nil || time.Duration(v) != want {
			t.Errorf("%q: %v, %v; want %v", s, time.Duration(v), err, want)
		}
	}
	for _, s := range []string{"", "x", "0", "-1", "-1s", "NaN"} {
		var v durationValue
		if err := v.Set(s); err == nil {
			t.Errorf("%q was taken as %v", s, time.Duration(v))
		}
	}
}

func TestCountValue(t *testing.T) {
	for s, want := range map[string]int{"1": 1, "9223372036854775807": math.MaxInt64} {
		var v countValue
		if err := v.Set(s); err != nil || int(v) != want {
			t.Errorf("%q: %d, %v; want %d", s, v, err, want)
		}
	}
	for _, s := range []string{"", "x", "0", "-1", "1.5", "9223372036854775808", "18446744073709551615"} {
		var v countValue
		if err := v.Set(s); err == nil {
			t.Errorf("%q was taken as %d, which is %d", s, uint64(v), int(v))
		}
	}
}

func TestPIDsValue(t *testing.T) {
	var v pidsValue
	if err := v.Set("1,22, 3"); err != nil {
		t.Fatal(err)
	}
	if err := v.Set("44,22"); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(v, []int{1, 22, 3, 44}) || v.String() != "1,22,3,44" {
		t.Errorf("got %v, %q", v, v.String())
	}
	for _, s := range []string{"", "0", "-5", "1,", "x", "4294967296"} {
		var v pidsValue
		if err := v.Set(s); err == nil {
			t.Errorf("%q was taken as %v", s, v)
		}
	}
}

func TestPositiveValues(t *testing.T) {
	var hz hertzValue
	if err := hz.Set("997"); err != nil || hz != 997 || hz.String() != "997" {
		t.Errorf("got %v, %q, %v", hz, hz.String(), err)
	}
	var n countValue
	if err := n.Set("9223372036854775807"); err != nil || n != 1<<63-1 {
		t.Errorf("got %v, %v", n, err)
	}
	for _, s := range []string{"", "0", "-1", "1.5", "many", "9223372036854775808"} {
		if err := hz.Set(s); err == nil {
			t.Errorf("%q was taken as %d Hz", s, hz)
		}
		if err := n.Set(s); err == nil {
			t.Errorf("%q was taken as %d events", s, n)
		}
	}
}
