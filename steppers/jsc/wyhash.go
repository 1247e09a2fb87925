package jsc

import (
	"encoding/binary"
	"math/bits"
)

// wyhash is Wyhash, version 4, of text and the seed 0, by which Bun finds what it keeps of a file
// (https://github.com/wangyi-fudan/wyhash).
func wyhash(text string) uint64 {
	const s0, s1, s2, s3 = 0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3, 0x589965cc75374cc3
	mix := func(a, b uint64) uint64 {
		hi, lo := bits.Mul64(a, b)
		return hi ^ lo
	}
	b, n := []byte(text), len(text)
	word, half := binary.LittleEndian.Uint64, func(b []byte) uint64 { return uint64(binary.LittleEndian.Uint32(b)) }
	seed := mix(s0, s1)
	var first, last uint64
	switch {
	case n > 16:
		x, y, rest := seed, seed, b
		for ; len(rest) > 48; rest = rest[48:] {
			seed = mix(word(rest)^s1, word(rest[8:])^seed)
			x = mix(word(rest[16:])^s2, word(rest[24:])^x)
			y = mix(word(rest[32:])^s3, word(rest[40:])^y)
		}
		seed ^= x ^ y
		for ; len(rest) > 16; rest = rest[16:] {
			seed = mix(word(rest)^s1, word(rest[8:])^seed)
		}
		first, last = word(b[n-16:]), word(b[n-8:])
	case n >= 4:
		at := n >> 3 << 2
		first = half(b)<<32 | half(b[at:])
		last = half(b[n-4:])<<32 | half(b[n-4-at:])
	case n > 0:
		first = uint64(b[0])<<16 | uint64(b[n>>1])<<8 | uint64(b[n-1])
	}
	hi, lo := bits.Mul64(first^s1, last^seed)
	return mix(lo^s0^uint64(n), hi^s1)
}
