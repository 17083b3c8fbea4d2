#include "textflag.h"

// func sumAVX2(p *byte, n int) uint64
//
// Each of Y0 to Y3 is four sums of 64 bits. Y0 and Y2 get the low halves of the words of 64
// bits, Y1 and Y3 the high ones, so that no addition carries.
TEXT ·sumAVX2(SB), NOSPLIT, $0-24
	MOVQ     p+0(FP), SI
	MOVQ     n+8(FP), CX
	VPXOR    Y0, Y0, Y0
	VPXOR    Y1, Y1, Y1
	VPXOR    Y2, Y2, Y2
	VPXOR    Y3, Y3, Y3
	VPCMPEQD Y7, Y7, Y7
	VPSRLQ   $32, Y7, Y7

loop:
	VMOVDQU (SI), Y4
	VMOVDQU 32(SI), Y5
	VPAND   Y7, Y4, Y6
	VPADDQ  Y6, Y0, Y0
	VPSRLQ  $32, Y4, Y4
	VPADDQ  Y4, Y1, Y1
	VPAND   Y7, Y5, Y8
	VPADDQ  Y8, Y2, Y2
	VPSRLQ  $32, Y5, Y5
	VPADDQ  Y5, Y3, Y3
	ADDQ    $64, SI
	SUBQ    $64, CX
	JNZ     loop

	VPADDQ       Y1, Y0, Y0
	VPADDQ       Y3, Y2, Y2
	VPADDQ       Y2, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPADDQ       X1, X0, X0
	VPSHUFD      $0x4e, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, AX
	VZEROUPPER
	MOVQ         AX, ret+16(FP)
	RET
