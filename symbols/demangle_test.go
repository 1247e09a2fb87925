package symbols

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
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
		{"_ZN4core3fmt9Formatter3pad17h0123456789abcdefE.llvm.123", "core::fmt::Formatter::pad", "core::fmt::Formatter::pad"},
		{"_Z3fooi.llvm.8213764.cold", "foo.cold", "foo(int) [clone .cold]"},
		{"local.llvm.17551945265027939304", "local", "local"},
		{"local.llvm.", "local.llvm.", "local.llvm."},
		{"local.llvm.x", "local.llvm.x", "local.llvm.x"},
		{"_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar", "mycrate::foo::bar"},
		{"_RINvNtCs1234_4core3ptr13drop_in_placehE", "core::ptr::drop_in_place", "core::ptr::drop_in_place::<u8>"},
		// D.
		{"_Dmain", "D main", "D main"},
		{"_D3app1C3runMFMDFNaiZiKiJiLiIAyaZi", "app.C.run", "app.C.run"},
		{"_D3app5outerFiZ5innerMFiZ__T6deeperVii3ZQmMFNaNbNiNfZi.part.0", "app.outer.inner.deeper.part.0", "app.outer.inner.deeper.part.0"},
		{"_D3app__T1STSQl__TQjTdZQoZQr10__postblitMFNaNbNiNfZv", "app.S.this(this)", "app.S.this(this)"},
		{"_D2rt5minfo11ModuleGroup6__ctorMFNbNcNiAyPS6object10ModuleInfoZSQCkQCkQCh", "rt.minfo.ModuleGroup.this", "rt.minfo.ModuleGroup.this"},
		{"_D3std6format5write__T11formatValueTSQBjQBi__T7sformatTaTykTykTkTkTkZQxFNkMAaMAxaykykkkkZ4SinkTykTaZQDaFNaNfKQCvKykMKxSQEnQEm4spec__T10FormatSpecTaZQpZv", "std.format.write.formatValue", "std.format.write.formatValue"},
		{"_D3app__T3tplSQm4mainFAAyaZ10__lambda16VQra4_6865226cVde0CP1VAiA2i1i2TiTQBxZQCpMFNaNbNiNfiQCpZi", "app.tpl", "app.tpl"},
		{"_D8demangle22__T2fnVAyaa3_616263TiZ2fnFiZv", "demangle.fn", "demangle.fn"},
		// OCaml, to 5.0 and from 5.1 on.
		{"camlStdlib__List__map_483", "Stdlib.List.map", "Stdlib.List.map"},
		{"camlStdlib__List.map_483", "Stdlib.List.map", "Stdlib.List.map"},
		{"camlProg__$2b$2b$2b_512", "Prog.+++", "Prog.+++"},
		{"camlProg__f$27_516", "Prog.f'", "Prog.f'"},
		{"camlProg__fun_1203", "Prog.fun_1203", "Prog.fun_1203"},
		{"camlProg___loop__step_12", "Prog._loop__step", "Prog._loop__step"},
		{"camlStdlib__Sys__Make_184", "Stdlib.Sys.Make", "Stdlib.Sys.Make"},
		{"camlProg__entry", "Prog.entry", "Prog.entry"},
		// Not names, or damaged ones.
		{"_D", "_D", "_D"},
		{"_D3app5outerFiZiX", "_D3app5outerFiZiX", "_D3app5outerFiZiX"},
		{"_D3app5outer", "_D3app5outer", "_D3app5outer"},
		{"_D3appQz", "_D3appQz", "_D3appQz"},
		{"caml_alloc_small_dispatch", "caml_alloc_small_dispatch", "caml_alloc_small_dispatch"},
		{"camlStdlib__List__frob", "camlStdlib__List__frob", "camlStdlib__List__frob"},
		{"camlProg__$2_516", "camlProg__$2_516", "camlProg__$2_516"},
		{"camlIdl_12", "camlIdl_12", "camlIdl_12"},
		{"shapes__show__2", "shapes__show__2", "shapes__show__2"},
		{"P$FIBP_$$_MAKE$LONGINT$$TNODE", "FIBP.MAKE", "FIBP.MAKE"},
		{"SYSTEM_$$_$assign$TDATETIME$$OLEVARIANT", "SYSTEM.assign", "SYSTEM.assign"},
		{"SYSUTILS$_$TENCODING_$__$$_GETANSIBYTES$PCHAR$LONGINT$$TBYTES", "SYSUTILS.TENCODING.GETANSIBYTES", "SYSUTILS.TENCODING.GETANSIBYTES"},
		{"P$NESTED$_$TOUTER_$_TINNER_$__$$_GO$LONGINT", "NESTED.TOUTER.TINNER.GO", "NESTED.TOUTER.TINNER.GO"},
		{"P$NESTED$_$TBOX$1$CRC9F312717_$__$$_PUT$LONGINT", "NESTED.TBOX.PUT", "NESTED.TBOX.PUT"},
		{"P$NESTED$_$TREC_$__$$_$plus$TREC$TREC$$TREC", "NESTED.TREC.plus", "NESTED.TREC.plus"},
		{"P$NESTED$_$PLAIN$LONGINT$LONGINT$$LONGINT_$$_SUB", "NESTED.PLAIN.SUB", "NESTED.PLAIN.SUB"},
		{"P$NESTED$_$TOUTER_$_RUN$SHORTSTRING$LONGINT_$$_HELPER$LONGINT", "NESTED.TOUTER.RUN.HELPER", "NESTED.TOUTER.RUN.HELPER"},
		// A procedure in a procedure in one: where the second begins does not follow.
		{"P$N$_$T_$_RUN$LONGINT_HELPER$LONGINT_$$_DEEP$LONGINT", "P$N$_$T_$_RUN$LONGINT_HELPER$LONGINT_$$_DEEP$LONGINT", "P$N$_$T_$_RUN$LONGINT_HELPER$LONGINT_$$_DEEP$LONGINT"},
		{"SYSTEM_$$_", "SYSTEM_$$_", "SYSTEM_$$_"},
		{"_$$_A", "_$$_A", "_$$_A"},
		{"system_$$_A", "system_$$_A", "system_$$_A"},
		{"U$_$_$__$$_A", "U$_$_$__$$_A", "U$_$_$__$$_A"},
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

// TestDemangleSwift has names by Swift 6.2 that say what its swift-demangle does, without parameters and so on.
func TestDemangleSwift(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"$s2aO4burnyS2iF", "aO.burn"},
		{"_$s2aO4burnyS2iF.llvm.12", "aO.burn"},
		{"$s2aO7CounterC3addyS2iF", "aO.Counter.add"},
		{"$s2aO4leafyS2iYaFTY1_", "aO.leaf"},
		{"$s2aO2SqVyxGAA5ShapeA2aEP7computeyS2iYaKFTWTQ0_", "protocol witness for aO.Shape.compute in conformance aO.Sq : aO.Shape"},
		{"$sSa2aOSiRszlE3hotSiyF", "Swift.Array.hot"},
		{"$s2aO3DerC1myS2iFSbSi_SitXEfU_", "closure #1 in aO.Der.m"},
		{"$s2aO3DerC1myS2iFS2i_Sitcfu_", "implicit closure #1 in aO.Der.m"},
		{"$s2aO4MainV4mainyyYaKFZSiScgySis5Error_pGzYaKXEfU_SiyYacfU1_TY0_", "closure #3 in closure #1 in aO.Main.main"},
		{"$sSMsSkRzrlE4sort2byySb7ElementSTQz_ADtKXE_tKFs15ContiguousArrayVySiG_Tg530$s2aO3DerC1myS2iFSbSi_SitXEfU_Tf1cn_n", "Swift.MutableCollection.sort"},
		{"$s2aO4BaseCACycfc", "aO.Base.init"},
		{"$s2aO4BaseCACycfC", "aO.Base.__allocating_init"},
		{"$sS2SycfC", "Swift.String.init"},
		{"$sScMfD", "Swift.MainActor.__deallocating_deinit"},
		{"$sScT5valuexvgTY0_", "Swift.Task.value.getter"},
		{"$sSPyxSicig", "Swift.UnsafePointer.subscript.getter"},
		{"$sSd2piSdvgZ", "Swift.Double.pi.getter"},
		{"$sSJ4_strSSvM.resume.0", "Swift.Character._str.modify.resume.0"},
		{"$sSb1nopyS2bFZ", "Swift.Bool.!"},
		{"$s10Foundation10NSCalendarC10IdentifierV1loiySbAE_AEtFZ", "Foundation.NSCalendar.Identifier.<"},
		{"$sScS_15bufferingPolicy_ScSyxGxm_ScS12ContinuationV09BufferingB0Oyx__GyADyx_GXEtcfcfA_", "default argument 0 of Swift.AsyncStream.init"},
		{"$s2aO7CounterC1vSivpfi", "variable initialization expression of aO.Counter.v"},
		{"$ss8_UInt128VSjs9MagnitudeSj_SLWT", "associated type witness table accessor for Swift.Comparable in Swift._UInt128 : Swift.Numeric"},
		{"$sScM6shared_WZ", "one-time initialization function for Swift.MainActor.shared"},
		{"$sIetH_yts5Error_pIegHrzo_TRTA", "partial apply for reabstraction thunk"},
		{"$sxSbRi_zRi0_zly7ElementQzIsegHnd_SgSciRzlWOy", "outlined copy of Swift.Optional"},
		{"$sypWOb", "outlined init with take of Any"},
		{"$sSIwCP", "initializeBufferWithCopyOfBuffer value witness for Swift.DefaultIndices"},
		{"$sSDMa", "type metadata accessor for Swift.Dictionary"},
		{"$sS2SSKsWl", "lazy protocol witness table accessor for type Swift.String and conformance Swift.String : Swift.BidirectionalCollection"},
		{"$sSmxycfCTj", "dispatch thunk of Swift.RangeReplaceableCollection.init"},
		{"$s5Glibc3powyS2f_SftFTJfSSpSr", "derivative of Glibc.pow"},
		{"$ss20_adHocPrint_unlocked___07isDebugC0yx_s6MirrorVq_zSbts16TextOutputStreamR_r0_lF13printTypeNameL_yyypXpsAER_r0_lF", "Swift._adHocPrint_unlocked.printTypeName"},
		{"$s54_swift_se0349_UnsafeMutableRawBufferPointer_storeBytesSi_Tt1g5Tm", "_swift_se0349_UnsafeMutableRawBufferPointer_storeBytes"},
		// Not names, or damaged ones.
		{"$s", "$s"},
		{"$s2aO", "$s2aO"},
		{"$s2aO4burnyS2i", "$s2aO4burnyS2i"},
		{"$s2aO4burnyS2iFF", "$s2aO4burnyS2iFF"},
		{"$s2aO9burnyS2iF", "$s2aO9burnyS2iF"},
		{"$sA_", "$sA_"},
		{"$s2aO4burnyS2iFTf1", "$s2aO4burnyS2iFTf1"},
		{"$start", "$start"},
	} {
		if got := Demangle(tc.name, DemangleSimple); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
	// Names of names of names take no more than they may.
	if long := "$s4000" + strings.Repeat("a", 4000) + strings.Repeat("AAVAAC", 1500); Demangle(long, DemangleSimple) != long {
		t.Error("a name that is as long as it can be made was demangled")
	}
}

// TestDemangleHaskell has names by GHC 9.10.
func TestDemangleHaskell(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"Main_nfib_info", "Main.nfib"},
		{"Main_zdwburn_info", "Main.$wburn"},
		{"Main_zdsfromListzuzdszdwpolyzugo8_slow", "Main.$sfromList_$s$wpoly_go8"},
		{"containerszm0zi7zminplace_DataziMapziInternal_foldlzq_info", "Data.Map.Internal.foldl'"},
		{"containerszm0zi7zminplace_DataziMapziInternal_Bin_con_info", "Data.Map.Internal.Bin"},
		{"ghczminternal_GHCziInternalziNum_zm_info", "GHC.Internal.Num.-"},
		{"ghczmprim_GHCziTupleziPrim_Z2T_con_info", "GHC.Tuple.Prim.(,)"},
		{"ghczmprim_GHCziTypes_ZC_con_info", "GHC.Types.:"},
		{"base_GHCziBase_z20acU_info", "GHC.Base.€"},
		// Names of C, of the runtime and damaged ones.
		{"Curl_get_info", "Curl_get_info"},
		{"stg_upd_frame_info", "stg_upd_frame_info"},
		{"s27E_info", "s27E_info"},
		{"Main_nfib", "Main_nfib"},
		{"Main__info", "Main__info"},
		{"Main_z_info", "Main_z_info"},
		{"Main_zk_info", "Main_zk_info"},
		{"Main_Z99999T_info", "Main_Z99999T_info"},
		{"Main_z110000U_info", "Main_z110000U_info"},
		{"GHCziBase_a_b_c_info", "GHCziBase_a_b_c_info"},
	} {
		if got := Demangle(tc.name, DemangleSimple); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// TestDemangleAda has names by GNAT 12 with what "c++filt -s gnat" makes of them,
// where it knows them.
func TestDemangleAda(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"_ada_demo", "demo"},
		{"shapes__show", "shapes.show"},
		{"shapes__show__2", "shapes.show"},
		{"shapes__Omultiply", `shapes."*"`},
		{"ada__directories__directory_vectors__Oeq__2Xn", `ada.directories.directory_vectors."="`},
		{"ada__directories___assign__2", `ada.directories.":="`},
		{"ada__directories__directory_entry_typeDF", "ada.directories.directory_entry_type.Finalize"},
		{"demo__iv__implementation__reference_control_typeSI.41", "demo.iv.implementation.reference_control_type'Input"},
		{"demo__workerTKB", "demo.worker"},
		{"shapes__lock__releaseN", "shapes.lock.release"},
		{"shapes__lock__seize_E6s", "shapes.lock.seize"},
		{"shapes___elabs", "shapes'Elab_Spec"},
		{"shapes__Ufcberraschung", "shapes.überraschung"},
		{"ada__calendar__value__2.part.0", "ada.calendar.value.part.0"},
		{"adainit", "adainit"},
		// Not encoded so.
		{"__gnat_initialize", "__gnat_initialize"},
		{"_ada_", "_ada_"},
		{"main", "main"},
		{"Shapes__show", "Shapes__show"},
		{"shapes__Show", "shapes__Show"},
		{"shapes__", "shapes__"},
		{"shapes__Oplus", "shapes__Oplus"},
		{"shapes__Uf", "shapes__Uf"},
		{"shapes__WW00110000", "shapes__WW00110000"},
		{"ada__directories__T567bXn", "ada__directories__T567bXn"},
	} {
		if got := demangleAda(tc.name, DemangleSimple); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
		if got := demangleAda(tc.name, DemangleNone); got != tc.name {
			t.Errorf("none %s: %q", tc.name, got)
		}
	}
}

// TestAdaByDebugInformation looks the same C functions up in a unit in C and in
// another that says it is in Ada: only there are they named as those of Ada.
func TestAdaByDebugInformation(t *testing.T) {
	const source = `
static inline __attribute__((always_inline)) int UNIT__inner(int n) { return n * *(volatile int *)&n; }
__attribute__((noinline)) int UNIT__Oadd__2(int n) { return UNIT__inner(n) + 1; }
`
	dir := t.TempDir()
	args := []string{"gcc", "-o", "prog"}
	for _, unit := range []struct{ name, language string }{{"first", ""}, {"second", "0xd"}} {
		write(t, dir, unit.name+".c", strings.ReplaceAll(source, "UNIT", unit.name))
		asm := run(t, dir, "gcc", "-O1", "-gdwarf-5", "-dA", "-S", "-o", "-", unit.name+".c")
		if unit.language != "" {
			asm = regexp.MustCompile(`\.byte\s+0x[0-9a-f]+(\s+\S+ DW_AT_language)`).ReplaceAllString(asm, ".byte "+unit.language+"$1")
		}
		write(t, dir, unit.name+".s", asm)
		args = append(args, unit.name+".s")
	}
	write(t, dir, "main.c", "int first__Oadd__2(int), second__Oadd__2(int); int main(int n, char **v) { return first__Oadd__2(n) + second__Oadd__2(n); }")
	run(t, dir, append(args, "main.c")...)
	path := filepath.Join(dir, "prog")
	names := make(map[string]bool)
	im := open(t, path)
	s := newSymbolizer(t, Options{})
	for _, sym := range readelfSymbols(t, path, ".symtab") {
		for at := sym.addr; strings.Contains(sym.name, "__Oadd") && at < sym.addr+sym.size; at++ {
			for _, l := range s.Lines(nil, im, at) {
				names[l.Function+" "+l.SystemName] = true
			}
		}
	}
	got := slices.Sorted(maps.Keys(names))
	want := []string{
		"first__Oadd__2 first__Oadd__2", "first__inner first__inner",
		`second."+" second__Oadd__2`, "second.inner second__inner",
	}
	if !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
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
	for _, s := range []string{"_Z3fooi.cold", "_ZNSt6vectorIiSaIiEE9push_backERKi@plt", "_RNvNtCs1234_7mycrate3foo3bar", "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE.llvm.1",
		"_D3std5array__T8AppenderTAyaZQo3putMFAyaZv", "_D3app__T3tplSQm4mainFAAyaZ10__lambda16VQra4_6865226cVde0CP1VAiA2i1i2TiTQBxZQCpMFNaNbNiNfiQCpZi", "camlProg__f$27_516", "shapes__lock__seize_E6s",
		"P$N$_$TBOX$1$CRC9F312717_$__$$_PUT$LONGINT"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, m := range []DemangleMode{DemangleSimple, DemangleFull} {
			if out := Demangle(s, m); len(out) > 1<<demangledLimit+2*len(s)+100 {
				t.Errorf("%d bytes", len(out))
			}
			if out := demangleAda(s, m); len(out) > 2*len(s)+100 {
				t.Errorf("Ada: %d bytes", len(out))
			}
		}
	})
}
