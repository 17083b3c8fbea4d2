package e2e

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"ipoibd/hca/roce"
	"ipoibd/ud/ipoib"
)

// rates are the probabilities with which a relay impairs a datagram.
type rates struct{ lose, duplicate, hold, damage float64 }

// damage is a kind of damage.
type damage int

// A frame whose UDP checksum is wrong does not reach the daemon, so the relay corrects it
// after each damage. Swapped words do not change any checksum, outer or inner, so that only
// the ICRC differs.
const (
	flipBits    damage = iota // 1 to maxFlips bits
	garble                    // 2 to maxGarble consecutive bytes
	swapWords                 // two different 16-bit words of the inner packet
	damageKinds               // their number

	maxFlips  = 8
	maxGarble = 32
	// maxHold is the longest time for which a datagram is held back, in datagrams that
	// overtake it.
	maxHold = 16
)

// tally counts what happened to the datagrams of one direction.
type tally struct {
	read, lost, duplicated, held, written uint64
	damaged                               [damageKinds]uint64
	// harmless is how many of the damaged ones have only a reserved byte changed, which the
	// ICRC does not cover: they must arrive.
	harmless uint64
	// drops is how many written datagrams the receiver must drop, by counter.
	drops map[string]uint64
	// forged is how many datagrams had a wrong ICRC when they arrived at the relay.
	forged uint64
	// joined is how many of the written ones were in trains.
	joined uint64
}

// delivered is how many of the written datagrams the receiver must not drop.
func (y tally) delivered() uint64 {
	n := y.written
	for _, drops := range y.drops {
		n -= drops
	}
	return n
}

// impairment impairs the datagrams of one direction. The same seed impairs the n-th datagram
// in the same way. With the zero value of rates it forwards everything.
type impairment struct {
	rnd   *rand.Rand
	rate  rates
	held  []heldBack
	tally tally
}

type heldBack struct {
	datagram
	overtaken int // how many more datagrams overtake it
}

func newImpairment(seed, direction uint64, rate rates) *impairment {
	return &impairment{rnd: rand.New(rand.NewPCG(seed, direction)), rate: rate, tally: tally{drops: map[string]uint64{}}}
}

// pass decides on a datagram and appends those to be sent now to out. It copies what it changes
// or keeps.
func (m *impairment) pass(d datagram, out []datagram) []datagram {
	m.tally.read++
	if !d.intact() {
		m.tally.forged++
	}
	copies := 1
	switch draw := m.rnd.Float64(); {
	case draw < m.rate.lose:
		m.tally.lost++
		return m.release(out)
	case draw < m.rate.lose+m.rate.duplicate:
		m.tally.duplicated++
		copies = 2
	}
	for range copies {
		c := d
		if m.rnd.Float64() < m.rate.damage {
			c = d.copied()
			m.damage(c)
		}
		if m.rnd.Float64() < m.rate.hold {
			m.tally.held++
			m.held = append(m.held, heldBack{c.copied(), 1 + m.rnd.IntN(maxHold)})
			continue
		}
		out = append(out, c)
	}
	return m.release(out)
}

// release appends the held datagrams that enough others have overtaken.
func (m *impairment) release(out []datagram) []datagram {
	kept := m.held[:0]
	for _, h := range m.held {
		if h.overtaken--; h.overtaken < 0 {
			out = append(out, h.datagram)
		} else {
			kept = append(kept, h)
		}
	}
	m.held = kept
	return out
}

// flush appends all that is held back.
func (m *impairment) flush(out []datagram) []datagram {
	for _, h := range m.held {
		out = append(out, h.datagram)
	}
	m.held = m.held[:0]
	return out
}

// damage changes a datagram, corrects its UDP checksum, and notes the counter by which the
// receiver must drop it.
func (m *impairment) damage(d datagram) {
	kind := damage(m.rnd.IntN(int(damageKinds)))
	if kind == swapWords && !m.swap(d.message()[ipoib.HeaderLen:]) {
		kind = flipBits
	}
	switch kind {
	case flipBits:
		for _, bit := range m.rnd.Perm(8 * len(d.roce))[:1+m.rnd.IntN(maxFlips)] {
			d.roce[bit/8] ^= 1 << (bit % 8)
		}
	case garble:
		n := 2 + m.rnd.IntN(maxGarble-1)
		at := m.rnd.IntN(len(d.roce) - n + 1)
		for i := range n {
			d.roce[at+i] ^= byte(1 + m.rnd.IntN(255))
		}
	default: // swapped above
	}
	m.tally.damaged[kind]++
	d.putUDPSum()
	if reason := reasonOf(d.roce); reason != "hca_rx_drop_icrc" || !d.intact() {
		m.tally.drops[reason]++
	} else {
		m.tally.harmless++
	}
}

// swap exchanges two different words of a packet. It returns false if it finds none.
func (m *impairment) swap(packet []byte) bool {
	words := len(packet) / 2
	for range 100 {
		if words < 2 {
			break
		}
		a, b := packet[2*m.rnd.IntN(words):], packet[2*m.rnd.IntN(words):]
		if x, y := [2]byte(a), [2]byte(b); x != y {
			copy(a, y[:])
			copy(b, x[:])
			return true
		}
	}
	return false
}

// testDatagram returns a datagram of a peer over IPv4 or IPv6.
func testDatagram(path roce.Path, id uint16, body []byte) datagram {
	path.ID = id
	p := rightPacket(0x123, message(ipoib.EtherTypeIPv4, body))
	inner := p.encode(path)
	frame := make([]byte, etherLen-2, etherLen+ip6Len+udpLen+len(inner))
	if path.Src.Is4() {
		frame = append(binary.BigEndian.AppendUint16(frame, etherIPv4), ipv4UDP(path, inner)...)
		binary.BigEndian.PutUint16(frame[etherLen+4:], id)
	} else {
		src, dst := path.Src.As16(), path.Dst.As16()
		frame = append(binary.BigEndian.AppendUint16(frame, etherIPv6), 0x60, 0, 0, 0)
		frame = append(binary.BigEndian.AppendUint16(frame, uint16(udpLen+len(inner))), 17, 64)
		frame = append(append(frame, src[:]...), dst[:]...)
		frame = binary.BigEndian.AppendUint16(frame, path.SrcPort)
		frame = binary.BigEndian.AppendUint16(frame, roce.Port)
		frame = binary.BigEndian.AppendUint16(frame, uint16(udpLen+len(inner)))
		frame = append(append(frame, 0, 0), inner...)
	}
	d, ok := parseDatagram(frame)
	if !ok {
		panic("no datagram")
	}
	d.putUDPSum()
	return d
}

var testPaths = []roce.Path{
	{Src: addr("192.0.2.1"), Dst: addr("192.0.2.2"), SrcPort: 0xc123},
	{Src: addr("2001:db8::1"), Dst: addr("2001:db8::2"), SrcPort: 0xc123},
}

// The tally of an impairment is right: what it wrote is what it read, less the lost,
// plus the duplicated; each damage is real, and the UDP checksum hides it.
func TestImpairmentIsAccountedFor(t *testing.T) {
	const n = 20000
	for _, path := range testPaths {
		m := newImpairment(1, 0, rates{lose: 0.05, duplicate: 0.06, hold: 0.07, damage: 0.08})
		var out []datagram
		damaged := uint64(0)
		seen := map[uint32]int{}
		last, overtaken := uint32(0), 0
		for i := range uint32(n) {
			body := bytes.Repeat(binary.BigEndian.AppendUint32(nil, i), 30)
			for _, d := range m.pass(testDatagram(path, uint16(i%64), body), out[:0]) {
				if d.intact() {
					seen[binary.BigEndian.Uint32(d.message()[ipoib.HeaderLen:])]++
				} else {
					damaged++
				}
				m.tally.written++
				if got := fold(d.pseudo(len(d.udp)) + sum16(d.udp)); got != 0xffff {
					t.Fatalf("UDP checksum adds up to %#x, want 0xffff", got)
				}
				if now := binary.BigEndian.Uint32(d.message()[ipoib.HeaderLen:]); d.intact() && now < last {
					overtaken++
				} else if d.intact() {
					last = now
				}
			}
		}
		rest := m.flush(nil)
		m.tally.written += uint64(len(rest))
		y := m.tally
		for _, d := range rest {
			if !d.intact() {
				damaged++
			}
		}
		t.Logf("%+v, %d overtaken", y, overtaken)
		if y.read != n || y.written != n-y.lost+y.duplicated || y.forged != 0 {
			t.Errorf("the account of %d datagrams is wrong: %+v", n, y)
		}
		if want := y.written - y.delivered(); damaged != want {
			t.Errorf("%d datagrams are damaged, the account says %d", damaged, want)
		}
		if all := y.damaged[flipBits] + y.damaged[garble] + y.damaged[swapWords]; all != damaged+y.harmless {
			t.Errorf("%d damages, %d of them harmless, but %d damaged datagrams", all, y.harmless, damaged)
		}
		for what, k := range map[string]uint64{"lost": y.lost, "duplicated": y.duplicated, "held": y.held, "flipped": y.damaged[flipBits], "garbled": y.damaged[garble], "swapped": y.damaged[swapWords], "overtaken": uint64(overtaken)} {
			if k < n/100 {
				t.Errorf("only %d %s", k, what)
			}
		}
	}
}

// Swapped words leave every checksum as it was.
func TestSwappedWordsLeaveChecksums(t *testing.T) {
	m := newImpairment(1, 0, rates{})
	for i := range 1000 {
		body := make([]byte, 2+m.rnd.IntN(1400))
		for j := range body {
			body[j] = byte(m.rnd.Uint32())
		}
		d := testDatagram(testPaths[i%2], 0, body)
		before := d.copied()
		if !m.swap(d.message()[ipoib.HeaderLen:]) {
			continue
		}
		if d.intact() || fold(sum16(d.udp)) != fold(sum16(before.udp)) {
			t.Fatalf("swapped words: intact %t, the sum was %#x, is %#x", d.intact(), fold(sum16(before.udp)), fold(sum16(d.udp)))
		}
	}
}

// The same seed impairs datagrams in the same way.
func TestImpairmentIsReproducible(t *testing.T) {
	run := func() (sent [][]byte) {
		m := newImpairment(7, 1, rates{lose: 0.1, duplicate: 0.1, hold: 0.1, damage: 0.1})
		var out []datagram
		for i := range 1000 {
			out = m.pass(testDatagram(testPaths[0], uint16(i%64), make([]byte, 100)), out[:0])
			for _, d := range out {
				sent = append(sent, bytes.Clone(d.frame))
			}
		}
		return sent
	}
	if !slices.EqualFunc(run(), run(), bytes.Equal) {
		t.Error("two runs with one seed differ")
	}
}
