package roce

import "testing"

// Damage in one place passes if the solver mistakes it for an identification. For a
// byte that the ICRC covers, that depends only on its distance from the
// identification; for a byte of the ICRC itself, only on the length. The tests can
// therefore try all lengths.
const (
	longest  = HeaderLen + 4096 + ICRCLen
	idToBTH  = ipv4Len - ipv4IDOffset + udpLen // bytes from the identification
	idToICRC = idToBTH - ICRCLen               // bytes from the identification, plus the length
)

// passes applies each mask to every byte of datagrams of all lengths up to longest.
// It returns how many were tried and how many passed.
func passes(masks []uint32) (passed, tried int) {
	for i := range longest - ICRCLen {
		for _, mask := range masks {
			tried++
			passed += solves(rewind(mask, idToBTH+i))
		}
	}
	for n := HeaderLen + ICRCLen; n <= longest; n += wordLen {
		for i := range ICRCLen {
			for _, mask := range masks {
				tried++
				passed += solves(rewind(mask<<(8*i), idToICRC+n))
			}
		}
	}
	return passed, tried
}

// solves returns 1 if the solution is an identification.
func solves(solution uint32) int {
	if solution>>16 == 0 {
		return 1
	}
	return 0
}

func TestNoOneBitDamagePassesAtAnyLength(t *testing.T) {
	var masks []uint32
	for bit := range 8 {
		masks = append(masks, 1<<bit)
	}
	passed, tried := passes(masks)
	t.Logf("%d of %d one-bit errors pass", passed, tried)
	if passed != 0 {
		t.Fail()
	}
}

func TestFewOneByteDamagesPassAtAnyLength(t *testing.T) {
	var masks []uint32
	for mask := range uint32(256) {
		masks = append(masks, mask)
	}
	passed, tried := passes(masks[1:])
	t.Logf("%d of %d one-byte errors pass; expected for random damage: %.1f", passed, tried, float64(tried)/(1<<16))
	if passed > tried>>15 {
		t.Error("more than twice the expected number pass")
	}
}

// The differences that the tests above assume are those of a damaged datagram.
func TestDamageIsWhatTheSolverSees(t *testing.T) {
	path := Path{SrcPort: 1}
	for _, n := range []int{HeaderLen + ICRCLen, 100, longest} {
		right := make([]byte, n)
		before, _ := new(start).mismatch(&path, right)
		for i := range n {
			if i == bthResv8a {
				continue
			}
			right[i] = 0xa5
			after, _ := new(start).mismatch(&path, right)
			right[i] = 0
			got, want := rewind(before^after, covered(ipv4IDOffset, n)), rewind(0xa5, idToBTH+i)
			if k := i - (n - ICRCLen); k >= 0 {
				want = rewind(0xa5<<(8*k), idToICRC+n)
			}
			if got != want {
				t.Fatalf("%d bytes, byte %d: %#08x, want %#08x", n, i, got, want)
			}
		}
	}
}
