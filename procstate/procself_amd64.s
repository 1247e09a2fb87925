#include "textflag.h"

// func copySelf(s *selfState, buf *uint64, words uint64)
TEXT ·copySelf(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ s+0(FP), AX
	MOVQ 0(SP), CX
	MOVQ CX, 0(AX) // pc: the return address
	LEAQ 8(SP), SI
	MOVQ SI, 8(AX) // sp: after the return
	MOVQ BP, 16(AX)
	MOVQ (TLS), DX
	MOVQ DX, 24(AX)
	MOVQ 8(DX), CX // g.stack.hi
	SUBQ SI, CX
	SHRQ $3, CX
	MOVQ CX, 32(AX)
	MOVQ buf+8(FP), DI
	CMPQ CX, words+16(FP)
	JHI  done
	CLD
	REP; MOVSQ
done:
	RET
