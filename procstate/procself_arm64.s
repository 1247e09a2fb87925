#include "textflag.h"

// func copySelf(s *selfState, buf *uint64, words uint64)
TEXT ·copySelf(SB), NOSPLIT|NOFRAME, $0-24
	MOVD s+0(FP), R0
	MOVD R30, 0(R0) // pc: the return address
	MOVD RSP, R1
	MOVD R1, 8(R0)
	MOVD R29, 16(R0)
	MOVD g, 24(R0)
	MOVD 8(g), R2 // g.stack.hi
	SUB  R1, R2
	LSR  $3, R2
	MOVD R2, 32(R0)
	MOVD buf+8(FP), R3
	MOVD words+16(FP), R4
	CMP  R4, R2
	BHI  done
	CBZ  R2, done
loop:
	MOVD.P 8(R1), R5
	MOVD.P R5, 8(R3)
	SUBS $1, R2
	BNE  loop
done:
	RET
