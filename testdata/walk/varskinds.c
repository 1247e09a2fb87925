// A frame with a variable of each kind of type that C has, and of values that
// are hard to write.
#include <complex.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <uchar.h>
#include <unistd.h>
#include <wchar.h>

typedef int v4 __attribute__((vector_size(16)));
typedef signed char v8c __attribute__((vector_size(8)));
typedef unsigned char v8u __attribute__((vector_size(8)));
typedef float v2f __attribute__((vector_size(8)));
enum flags { A = 1, B = 2, C = 4 };
enum negative { M = -1, Z };
struct bits {
	int a : 3;
	unsigned b : 5;
	long long c : 33;
	signed char d : 2;
	_Bool f : 1;
	enum flags e : 3;
};
struct empty {};
struct opaque;

static volatile int sink;

__attribute__((noinline)) static void stand(void *p, ...) {
	char c = 0;
	printf("ready\n");
	fflush(stdout);
	sink += (int)read(0, &c, 1) + (p != NULL);
}

int main(void) {
	// Strings
	char escapes[] = "\0011\3772\n3\0334\t\\\"é5", embedded[] = "ab\0cd\0\0", invalid[] = "\xd5z\xd6z", empty[1] = "", zero[2] = "", zeros[40] = "";
	char repeated[] = "aaaaaaaaaaaaaaaaaaaaaaaaaab", mixed[60] = "aaaaaaaaaaaaaaaaaaa\377b\377\377", full[4] = "abcd", many[300], cut[5] = "ab\xc3\xa9\xc3";
	memset(many, 'x', 299), many[299] = 0;
	char letters[250], tail[250];
	for (int i = 0; i < 250; i++)
		letters[i] = (char)('a' + i % 26), tail[i] = i < 150 ? letters[i] : 'z';
	unsigned char bytes[] = {1, '1', '2', 0, 0, 0xc3, 0xa9};
	wchar_t wide[] = L"wide é \x1F600 \1", wide_repeats[] = L"aaaaaaaaaaaaaaabcccccccccccc", wide_zeros[3] = {0}, negative_wide[] = {-1, 'a', 'z', 0};
	char16_t utf16[] = u"u16 é 😀", utf16_empty[1] = {0};
	char32_t utf32[] = U"u32 é 😀\n", beyond[] = {'a', 0x110000, 7, 0};
	const char *none = NULL, *bad = (char *)8, *text = repeated, *long_text = letters, *long_repeat = tail;
	const wchar_t *wide_text = wide, *wide_none = wide_zeros;
	const char16_t *text16 = utf16;
	const char32_t *text32 = utf32;
	const unsigned char *unsigned_text = bytes;
	// Characters
	char control = '\001', quote = '\'', double_quote = '"';
	signed char small = -5;
	unsigned char large = 200;
	wchar_t wide_char = L'é', no_char = -1;
	char16_t surrogate = 0xd83d;
	char32_t face = 0x1f600, no_char32 = 0x110000, bell = 7;
	// Numbers
	float nan32 = __builtin_nanf("3"), minus_inf = -__builtin_inff();
	double nan64 = -__builtin_nan("");
	long double nan80 = __builtin_nanl(""), third = 1.0L / 3;
	_Complex float complex32 = 1.5f + 2.0f * I;
	_Bool yes = 1;
	_Float16 half = 1.5f16;
#ifdef __SIZEOF_INT128__
	__int128 wide_int = -5;
	unsigned __int128 wide_unsigned = (unsigned __int128)1 << 100;
	__float128 quad = 1.25;
#endif
#ifndef __clang__
	_Decimal32 decimal32 = 2.25DF, decimal_tiny = 1E-20DF;
	_Decimal64 decimal64 = 1.5DD, decimal_huge = 9999999999999999E300DD, decimal_none = -0.000001DD;
	_Decimal128 decimal128 = -3.125DL;
#endif
	v4 vector = {1, 2, 3, 4};
	v8c vector_char = {'a', -1, 2};
	v8u vector_unsigned = {'a', 255};
	v2f vector_float = {1.5f, 2.5f};
	// Enumerations
	enum flags both = A | C, no_flags = 0, unknown_flags = (enum flags)(8 | 1), only_unknown = (enum flags)64;
	enum negative minus = M, not_one = (enum negative)7;
	// Structs and arrays
	struct bits bits = {-1, 17, -77, 1, 1, C};
	struct {
		int x;
		union {
			int u;
			float f;
		};
		struct {
			char in[4];
			int arr[2][2];
		} s;
	} anonymous = {1, {2}, {"in", {{1, 2}, {3, 4}}}};
	struct empty nothing;
	int cube[2][2][2] = {{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}, runs[24] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3}, hundreds[260];
	for (int i = 0; i < 260; i++)
		hundreds[i] = i;
	const char *strings[2] = {"one", NULL};
	// Pointers
	void *pointer = &anonymous;
	int **null_pointer = NULL, (*to_array)[3] = NULL;
	struct bits *to_struct = &bits;
	struct opaque *to_opaque = (struct opaque *)16;
	void (*function)(void *, ...) = stand;
	stand(escapes, embedded, invalid, empty, zero, zeros, repeated, mixed, full, many, cut, letters, tail, bytes, wide, wide_repeats, wide_zeros,
		negative_wide, utf16, utf16_empty, utf32, beyond, &none, &bad, &text, &long_text, &long_repeat, &wide_text, &wide_none, &text16, &text32,
		&unsigned_text, &control, &quote, &double_quote, &small, &large, &wide_char, &no_char, &surrogate, &face, &no_char32, &bell, &nan32,
		&minus_inf, &nan64, &nan80, &third, &complex32, &yes, &half, &vector, &vector_char, &vector_unsigned, &vector_float, &both, &no_flags, &unknown_flags, &only_unknown, &minus,
		&not_one, &bits, &anonymous, &nothing, cube, runs, hundreds, strings, &pointer, &null_pointer, &to_array, &to_struct, &to_opaque, &function
#ifdef __SIZEOF_INT128__
		, &wide_int, &wide_unsigned, &quad
#endif
#ifndef __clang__
		, &decimal32, &decimal_tiny, &decimal64, &decimal_huge, &decimal_none, &decimal128
#endif
	);
	return sink != 1;
}
