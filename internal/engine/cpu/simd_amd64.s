#include "textflag.h"

// One step of 8 columns: a row of B against three rows of A.
#define STEP(ROW, ACC0, ACC1, ACC2) \
	VMOVUPS     (ROW)(AX*1), Y15 \
	VFMADD231PS Y15, Y12, ACC0   \
	VFMADD231PS Y15, Y13, ACC1   \
	VFMADD231PS Y15, Y14, ACC2

// The sums of the lanes of four accumulators, in a fixed order, as four floats at OFF(DX).
#define REDUCE(A, B, C, D, AX0, BX0, OFF) \
	VHADDPS      B, A, A     \
	VHADDPS      D, C, C     \
	VHADDPS      C, A, A     \
	VEXTRACTF128 $1, A, BX0  \
	VADDPS       BX0, AX0, AX0 \
	VMOVUPS      AX0, OFF(DX)

// func dot3x4(a0, a1, a2, b0, b1, b2, b3 *float32, n int, out *[12]float32)
TEXT ·dot3x4(SB), NOSPLIT, $0-72
	MOVQ a0+0(FP), SI
	MOVQ a1+8(FP), DI
	MOVQ a2+16(FP), R8
	MOVQ b0+24(FP), R9
	MOVQ b1+32(FP), R10
	MOVQ b2+40(FP), R11
	MOVQ b3+48(FP), R12
	MOVQ n+56(FP), CX
	MOVQ out+64(FP), DX

	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	XORQ   AX, AX
	SHLQ   $2, CX // bytes

loop:
	CMPQ    AX, CX
	JAE     done
	VMOVUPS (SI)(AX*1), Y12
	VMOVUPS (DI)(AX*1), Y13
	VMOVUPS (R8)(AX*1), Y14
	STEP(R9, Y0, Y4, Y8)
	STEP(R10, Y1, Y5, Y9)
	STEP(R11, Y2, Y6, Y10)
	STEP(R12, Y3, Y7, Y11)
	ADDQ    $32, AX
	JMP     loop

done:
	REDUCE(Y0, Y1, Y2, Y3, X0, X1, 0)
	REDUCE(Y4, Y5, Y6, Y7, X4, X5, 16)
	REDUCE(Y8, Y9, Y10, Y11, X8, X9, 32)
	VZEROUPPER
	RET

// func widenBF16(dst *float32, src *uint16, n int)
TEXT ·widenBF16(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	XORQ AX, AX

widen:
	CMPQ      AX, CX
	JAE       widened
	VPMOVZXWD (SI)(AX*2), Y0
	VPSLLD    $16, Y0, Y0
	VMOVDQU   Y0, (DI)(AX*4)
	ADDQ      $8, AX
	JMP       widen

widened:
	VZEROUPPER
	RET
