package roce_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"ipoibd/hca/roce"
)

// resv8a is the only byte that the ICRC does not cover; the tests do not damage it.
const resv8a = 4

// The expected fraction of random damage that passes: 32 bits of the ICRC, less those
// that an identification can compensate.
var theory = [roce.NumMatch]float64{
	roce.MatchKnownID: 1.0 / (1 << 32),
	roce.MatchLowID:   64.0 / (1 << 32),
	roce.MatchSolved:  (1<<16 - 64.0) / (1 << 32),
}

// toll counts damaged datagrams, and those that passed by kind of match.
type toll struct {
	tried  int
	passed [roce.NumMatch]int
}

// verify checks one damaged datagram without its identification. If Verify finds the
// datagram's own identification, the damage would also pass with a known one.
func (y *toll) verify(f *frame) {
	y.tried++
	path := f.path
	m := new(roce.Verifier).Verify(&path, false, f.datagram)
	y.passed[m]++
	if m > roce.MatchKnownID && path.ID == f.path.ID {
		y.passed[roce.MatchKnownID]++
	}
}

// report prints what passed next to the number expected for random damage.
func (y *toll) report(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: %d damaged datagrams", what, y.tried)
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		t.Logf("  passed as %-8v %5d, expected for random damage %10.4f", m, y.passed[m], y.expect(m))
	}
}

// expect returns how many should pass in theory.
func (y *toll) expect(m roce.Match) float64 { return theory[m] * float64(y.tried) }

// byChance fails the test if more pass than chance explains: five standard deviations
// above the expected number.
func (y *toll) byChance(t *testing.T) {
	t.Helper()
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		if want := y.expect(m); float64(y.passed[m]) > want+5*math.Sqrt(want) {
			t.Errorf("%d pass as %v, expected %.4f", y.passed[m], m, want)
		}
	}
}

// inClusters fails the test if more than four times the expected number pass. Errors of
// one byte or two bits that pass come in clusters: if one is shifted by a bit, the
// identification that compensates it shifts too; and it passes in every frame of its
// length.
func (y *toll) inClusters(t *testing.T) {
	t.Helper()
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		if want := 4 * y.expect(m); float64(y.passed[m]) > want {
			t.Errorf("%d pass as %v, limit (four times the expected number) %.4f", y.passed[m], m, want)
		}
	}
}

// none fails the test if any damaged datagram passed.
func (y *toll) none(t *testing.T) {
	t.Helper()
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		if y.passed[m] != 0 {
			t.Errorf("%d pass as %v, want none", y.passed[m], m)
		}
	}
}

// flip xors byte i with mask, verifies the frame, and restores the byte.
func (y *toll) flip(f *frame, i int, mask byte) {
	if i == resv8a {
		return
	}
	f.datagram[i] ^= mask
	y.verify(f)
	f.datagram[i] ^= mask
}

func (y *toll) everyBit(f *frame) {
	for i := range f.datagram {
		for bit := range 8 {
			y.flip(f, i, 1<<bit)
		}
	}
}

func (y *toll) everyByte(f *frame) {
	for i := range f.datagram {
		for mask := 1; mask < 256; mask++ {
			y.flip(f, i, byte(mask))
		}
	}
}

// place returns the offset of a random byte that the ICRC covers, or of the ICRC.
func place(rng *rand.Rand, f *frame) int {
	for {
		if i := rng.IntN(len(f.datagram)); i != resv8a {
			return i
		}
	}
}

// twoBits flips two different bits, n times.
func (y *toll) twoBits(rng *rand.Rand, f *frame, n int) {
	for range n {
		i, a := place(rng, f), byte(1)<<rng.IntN(8)
		j, b := place(rng, f), byte(1)<<rng.IntN(8)
		if i == j && a == b {
			continue
		}
		f.datagram[i] ^= a
		y.flip(f, j, b)
		f.datagram[i] ^= a
	}
}

// garble overwrites 8 to 64 bytes after the BTH with random values, n times, and
// restores them.
func (y *toll) garble(rng *rand.Rand, f *frame, n int) {
	body := f.datagram[roce.BTHLen:]
	mended := append([]byte(nil), body...)
	for range n {
		size := 8 + rng.IntN(min(57, len(body)-7))
		at := rng.IntN(len(body) - size + 1)
		for i := range size {
			body[at+i] = byte(rng.Uint32())
		}
		y.verify(f)
		copy(body[at:], mended[at:at+size])
	}
}

func TestDamageRealFrames(t *testing.T) {
	rng := newRand(12)
	var oneBit, oneByte, twoBits, garbled toll
	for _, f := range rxeFrames(t) {
		oneBit.everyBit(&f)
		oneByte.everyByte(&f)
		twoBits.twoBits(rng, &f, 30_000)
		garbled.garble(rng, &f, 30_000)
	}
	oneBit.report(t, "real frames, every bit")
	oneBit.none(t)
	oneByte.report(t, "real frames, every byte")
	oneByte.inClusters(t)
	twoBits.report(t, "real frames, two bits")
	twoBits.inClusters(t)
	garbled.report(t, "real frames, random")
	garbled.byChance(t)
}

// Synthetic frames of every length up to 4096, with random bits of each damaged.
func TestDamageEveryLength(t *testing.T) {
	rng := newRand(13)
	var oneBit, twoBits, garbled toll
	for n := 0; n <= 4096; n += 4 {
		f := synthetic(rng, path4, n)
		for range 200 {
			oneBit.flip(&f, place(rng, &f), 1<<rng.IntN(8))
		}
		twoBits.twoBits(rng, &f, 200)
		garbled.garble(rng, &f, 500)
	}
	oneBit.report(t, "every length, one bit")
	oneBit.none(t)
	twoBits.report(t, "every length, two bits")
	twoBits.inClusters(t)
	garbled.report(t, "every length, random")
	garbled.byChance(t)
	if n := garbled.passed[roce.MatchSolved]; n == 0 {
		t.Error("no damage passed as solved: the expectation is wrong, or nothing was damaged")
	}
}

// The longest frame has the most bytes to damage.
func TestDamageLongestFrame(t *testing.T) {
	f := synthetic(newRand(14), path4, 4096)
	var oneBit, oneByte toll
	oneBit.everyBit(&f)
	oneByte.everyByte(&f)
	oneBit.report(t, "4096 bytes, every bit")
	oneBit.none(t)
	oneByte.report(t, "4096 bytes, every byte")
	oneByte.inClusters(t)
}
