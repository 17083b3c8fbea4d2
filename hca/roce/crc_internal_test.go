package roce

import (
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"
)

func TestUpdateStateIsCRC32(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "bytes")
		start := rapid.Uint32().Draw(t, "start")
		if got, want := ^updateState(^start, b), crc32.Update(start, crc32.IEEETable, b); got != want {
			t.Fatalf("%#08x, want %#08x", got, want)
		}
	})
}

func TestPolynomials(t *testing.T) {
	poly := rapid.Uint32()
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := poly.Draw(t, "a"), poly.Draw(t, "b"), poly.Draw(t, "c")
		if mul(a, polyOne) != a {
			t.Error("1 is not neutral")
		}
		if mul(a, b) != mul(b, a) {
			t.Error("a·b is not b·a")
		}
		if mul(a, mul(b, c)) != mul(mul(a, b), c) {
			t.Error("a·(b·c) is not (a·b)·c")
		}
		if mul(a, b^c) != mul(a, b)^mul(a, c) {
			t.Error("a·(b+c) is not a·b + a·c")
		}
		if divX(mulX(a)) != a || mulX(divX(a)) != a {
			t.Error("x/x is not 1")
		}
		if mulX(a) != mul(a, polyOne>>1) {
			t.Error("mulX does not multiply by x")
		}
	})
}

// rewind inverts the effect of n equal bytes on a difference, for all n.
func TestRewind(t *testing.T) {
	const diff = 0xdeadbeef
	zero := []byte{0}
	a, b := uint32(diff), uint32(0)
	for n := range 1 << 16 {
		if got := rewind(a^b, n); got != diff {
			t.Fatalf("%d bytes: %#08x, want %#08x", n, got, diff)
		}
		a, b = updateState(a, zero), updateState(b, zero)
	}
}
