package roce_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"ipoibd/hca/roce"
)

// resv8a is the one byte that the ICRC does not cover; damage leaves it alone.
const resv8a = 4

// What part of random damage passes, by theory: the ICRC's 32 bits, less those
// that the identification may make up for.
var theory = [roce.NumMatch]float64{
	roce.MatchKnownID: 1.0 / (1 << 32),
	roce.MatchLowID:   64.0 / (1 << 32),
	roce.MatchSolved:  (1<<16 - 64.0) / (1 << 32),
}

// toll counts damages and those that passed, by how.
type toll struct {
	tried  int
	passed [roce.NumMatch]int
}

// verify tries one damaged datagram with its identification unknown. It would
// pass with the identification known if its own is found.
func (y *toll) verify(f *frame) {
	y.tried++
	m, id := roce.Verify(&f.path, false, f.datagram)
	y.passed[m]++
	if m > roce.MatchKnownID && id == f.path.ID {
		y.passed[roce.MatchKnownID]++
	}
}

// report prints what passed beside the theory of random damage.
func (y *toll) report(t *testing.T, what string) {
	t.Helper()
	t.Logf("%s: %d damages", what, y.tried)
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		t.Logf("  passed as %-8v %5d, theory of random damage %10.4f", m, y.passed[m], y.expect(m))
	}
}

// expect is how many should pass, by theory.
func (y *toll) expect(m roce.Match) float64 { return theory[m] * float64(y.tried) }

// byChance fails when more pass than chance explains: five standard deviations
// above theory.
func (y *toll) byChance(t *testing.T) {
	t.Helper()
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		if want := y.expect(m); float64(y.passed[m]) > want+5*math.Sqrt(want) {
			t.Errorf("%d pass as %v, by theory %.4f", y.passed[m], m, want)
		}
	}
}

// inClusters fails when more than four times as many pass as by theory. Damages
// of one byte or two bits that pass come in clusters: shift one by a bit, and
// the identification that makes up for it shifts too; and it passes in every
// frame of its length.
func (y *toll) inClusters(t *testing.T) {
	t.Helper()
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		if want := 4 * y.expect(m); float64(y.passed[m]) > want {
			t.Errorf("%d pass as %v, four times theory is %.4f", y.passed[m], m, want)
		}
	}
}

// none fails when any damage passed at all.
func (y *toll) none(t *testing.T) {
	t.Helper()
	for m := roce.MatchKnownID; m < roce.NumMatch; m++ {
		if y.passed[m] != 0 {
			t.Errorf("%d pass as %v", y.passed[m], m)
		}
	}
}

// flip xors byte i with mask, tries, and mends it again.
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

// place draws a byte that the ICRC covers, or one of its own.
func place(rng *rand.Rand, f *frame) int {
	for {
		if i := rng.IntN(len(f.datagram)); i != resv8a {
			return i
		}
	}
}

// twoBits damages two different bits, n times.
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

// garble overwrites 8 to 64 bytes behind the BTH at random, n times, and mends
// them.
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

// Synthetic frames of every length to 4096: bits at random places of each.
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
		t.Error("solving lets nothing pass: theory is wrong, or the damage is none")
	}
}

// The longest frame has more room for damage than any other.
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
