package symbols

import (
	"strings"
	"testing"
)

func TestDemangle(t *testing.T) {
	for _, tc := range []struct{ name, simple, full string }{
		{"main", "main", "main"},
		{"_start", "_start", "_start"},
		{"_Z3fooi", "foo", "foo(int)"},
		{"_Z3fooi@plt", "foo@plt", "foo(int)@plt"},
		{"_Z3fooi.cold", "foo.cold", "foo(int) [clone .cold]"},
		{"_Z3fooi.constprop.0.isra.1", "foo.constprop.0.isra.1", "foo(int) [clone .constprop.0] [clone .isra.1]"},
		{"main.cold", "main.cold", "main.cold"},
		{"_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector::push_back", "std::vector<int, std::allocator<int> >::push_back(int const&)"},
		{"_ZZ4mainENKUlvE_clEv", "main::{lambda()#1}::operator()", "main::{lambda()#1}::operator()() const"},
		{"_Z1fIiET_S0_", "f", "int f<int>(int)"},
		// Rust, legacy and v0.
		{"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad", "core::fmt::Formatter::pad"},
		{"_ZN3std3sys9backtrace28__rust_begin_short_backtrace17h6568139c7aa8ad1cE", "std::sys::backtrace::__rust_begin_short_backtrace", "std::sys::backtrace::__rust_begin_short_backtrace"},
		{"_ZN4core3ptr26drop_in_place$LT$_a..b$GT$17h6568139c7aa8ad1cE", "core::ptr::drop_in_place<_a::b>", "core::ptr::drop_in_place<_a::b>"},
		{"_ZN50_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$3_f17h6568139c7aa8ad1cE", "_ZN50_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$3_f17h6568139c7aa8ad1cE", "_ZN50_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$3_f17h6568139c7aa8ad1cE"},
		{"_ZN42_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$2_f17h6568139c7aa8ad1cE", "<&T as core::fmt::Debug>::_f", "<&T as core::fmt::Debug>::_f"},
		{"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE.llvm.123", "core::fmt::Formatter::pad.llvm.123", "core::fmt::Formatter::pad"},
		{"_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar", "mycrate::foo::bar"},
		{"_RINvNtCs1234_4core3ptr13drop_in_placehE", "core::ptr::drop_in_place", "core::ptr::drop_in_place::<u8>"},
		// Not names, or damaged ones.
		{"_Z", "_Z", "_Z"},
		{"_ZN", "_ZN", "_ZN"},
		{"", "", ""},
		{"runtime.main", "runtime.main", "runtime.main"},
	} {
		if got := Demangle(tc.name, DemangleSimple); got != tc.simple {
			t.Errorf("simple %s: %q, want %q", tc.name, got, tc.simple)
		}
		if got := Demangle(tc.name, DemangleFull); got != tc.full {
			t.Errorf("full %s: %q, want %q", tc.name, got, tc.full)
		}
		if got := Demangle(tc.name, DemangleNone); got != tc.name {
			t.Errorf("none %s: %q", tc.name, got)
		}
	}
	if long := "_Z" + strings.Repeat("1a", maxMangled); Demangle(long, DemangleFull) != long {
		t.Error("a name that is too long was demangled")
	}
}

func TestParseDemangleMode(t *testing.T) {
	for s, want := range map[string]DemangleMode{"simple": DemangleSimple, "": DemangleSimple, "full": DemangleFull, "none": DemangleNone} {
		if m, ok := ParseDemangleMode(s); !ok || m != want {
			t.Errorf("%q: %v %v", s, m, ok)
		}
	}
	if _, ok := ParseDemangleMode("Simple"); ok {
		t.Error("Simple is a mode")
	}
}

func FuzzDemangle(f *testing.F) {
	for _, s := range []string{"_Z3fooi.cold", "_ZNSt6vectorIiSaIiEE9push_backERKi@plt", "_RNvNtCs1234_7mycrate3foo3bar", "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE.llvm.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, m := range []DemangleMode{DemangleSimple, DemangleFull} {
			if out := Demangle(s, m); len(out) > 1<<demangledLimit+2*len(s)+100 {
				t.Errorf("%d bytes", len(out))
			}
		}
	})
}
