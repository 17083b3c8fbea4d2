package e2e

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/link/linktest/nstest"
	"ipoibd/ud/ipoib"
)

// All traffic that the host leaves to be segmented reaches the wire and the other host. Three
// observers, at the sender's ib0, on the underlay and at the receiver's ib0, record the same
// packets bit for bit, once a simple reference implementation has cut large frames.
func TestOffloads(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	p := newRelayedPair(t, 1500, rates{}, sameArgs(slowPath))
	for _, c := range offloadCases {
		t.Run(c.name, func(t *testing.T) { p.observe(t, c) })
	}
	p.requireExact()
}

// If the host may not send large frames, the same traffic arrives in small ones. (The daemon
// restores offloads that ethtool turns off.)
func TestNoLargeFrames(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	p := newRelayedPair(t, 1500, rates{}, sameArgs(slowPath))
	for _, h := range p.hosts {
		h.Run("ip", "link", "set", ifName, "gso_max_segs", "1")
	}
	for _, c := range offloadCases[:form(2, len(offloadCases))] {
		c.large, c.joined = false, false
		t.Run(c.name, func(t *testing.T) {
			before := p.hosts[0].book()
			p.observe(t, c)
			if n := p.hosts[0].book().since(before).of("tx_large"); n != 0 {
				t.Errorf("%d large frames", n)
			}
		})
	}
	p.requireExact()
}

// observe runs a case and compares what the three witnesses saw.
func (p *relayed) observe(t *testing.T, c offloadCase) {
	defer func() {
		if t.Failed() {
			t.Logf("%s\n%s", p.hosts[0].describe(), p.hosts[1].describe())
		}
	}()
	var wire [2]wireWitness
	for i := range wire {
		wire[i] = wireWitness{tb: t, psn: map[hca.QPN]uint32{}}
	}
	captures := [2]*tapCapture{p.hosts[0].captureTAP(), p.hosts[1].captureTAP()}
	p.setWatch(func(from int, d datagram, written bool) {
		if !written {
			wire[from].see(d)
		}
	})
	before := [2]book{p.hosts[0].book(), p.hosts[1].book()}
	x := &exchange{t: t, from: p.hosts[0].in(t), to: p.hosts[1].in(t)}
	c.run(x)
	p.settle(t, &captures, &wire)
	for _, capture := range captures {
		capture.end()
	}
	p.setWatch(nil)
	for i := range wire {
		wire[i].compare(captures[i], captures[1-i])
		// Messages of a queue pair to itself, its probes, also have numbers.
		if looped := p.hosts[i].book().since(before[i]).of("hca_tx_looped"); uint64(wire[i].gaps) > looped {
			t.Errorf("host %d: %d PSNs are missing on the wire, of which %d were looped back", i, wire[i].gaps, looped)
		}
	}
	_, sent := cutAll(t, captures[0].sent)
	_, received := cutAll(t, captures[1].received)
	t.Logf("%d large frames of %d sent, %d packets on the wire, %d large frames of %d received",
		sent, len(captures[0].sent), len(wire[0].packets), received, len(captures[1].received))
	if c.shows != nil && !slices.ContainsFunc(slices.Concat(wire[0].packets, wire[1].packets), c.showsIn) {
		t.Error("no packet has what the case is about")
	}
	if c.large && sent == 0 || c.joined && received == 0 {
		t.Errorf("%d large frames sent, %d received", sent, received)
	}
}

// settle waits until the witnesses see no more packets, and all have seen as many: a busy machine may forward the last
// ones late. If they do not agree after a while, compare says where they differ.
func (p *relayed) settle(t *testing.T, captures *[2]*tapCapture, wire *[2]wireWitness) {
	t.Helper()
	last := -1
	for end := time.Now().Add(repairLimit); time.Now().Before(end); time.Sleep(captureLull) {
		var sent, received [2][]offloaded
		var passed [2][][]byte
		for i, capture := range captures {
			sent[i], received[i] = capture.soFar()
		}
		p.mu.Lock()
		for i := range wire {
			passed[i] = wire[i].packets
		}
		p.mu.Unlock()
		seen, agree := 0, true
		for i := range passed {
			seen += len(sent[i]) + len(passed[i]) + len(received[i])
		}
		for i := range passed {
			agree = agree && seen == last && sameNumbers(t, sent[i], passed[i]) && sameNumbers(t, received[1-i], passed[i])
		}
		if agree {
			return
		}
		last = seen
	}
}

// sameNumbers reports whether frames stand for as many packets of each conversation as there are.
func sameNumbers(t *testing.T, frames []offloaded, packets [][]byte) bool {
	t.Helper()
	own, _ := cutAll(t, frames)
	counts := map[conversation]int{}
	for s, list := range sorted(own) {
		counts[s] = len(list)
	}
	for s, list := range sorted(packets) {
		counts[s] -= len(list)
	}
	return !slices.ContainsFunc(slices.Collect(maps.Values(counts)), func(n int) bool { return n != 0 })
}

// showsIn reports whether a packet between the hosts has what the case is about.
func (c offloadCase) showsIn(ip []byte) bool {
	s, start, ok := conversationOf(ip)
	if start == 0 {
		start = ip4Len
	}
	return ok && s.dst.Is4() == (ip[0]>>4 == 4) && c.shows(ip, ip[start:])
}

// wireWitness collects the packets that one host sends.
type wireWitness struct {
	tb      testing.TB
	packets [][]byte
	psn     map[hca.QPN]uint32 // the last one of a queue pair
	gaps    uint32
}

// see checks the RoCEv2 headers of a datagram.
func (w *wireWitness) see(d datagram) {
	var send roce.UDSend
	switch err := send.Parse(d.roce); {
	case err != nil:
		w.tb.Errorf("not a UD SEND: %v, %+v, %d bytes", err, send.BTH, len(d.roce))
	case send.PKey != hca.PKeyDefault, send.QKey != qkey:
		w.tb.Errorf("wrong keys: %+v, %+v", send.BTH, send.DETH)
	case !d.intact():
		w.tb.Errorf("wrong ICRC: % x", d.roce)
	case fold(d.pseudo(len(d.udp))+sum16(d.udp)) != 0xffff:
		w.tb.Errorf("wrong UDP checksum: % x", d.udp[:udpLen])
	}
	if last, ok := w.psn[send.SrcQPN]; ok {
		w.gaps += (send.PSN - last - 1) & 0xffffff
	}
	w.psn[send.SrcQPN] = send.PSN
	m := d.message()
	if len(m) < ipoib.HeaderLen || binary.BigEndian.Uint16(m[2:]) != 0 {
		w.tb.Errorf("IPoIB header: % x", m[:min(len(m), ipoib.HeaderLen)])
		return
	}
	if typ := binary.BigEndian.Uint16(m); typ == etherIPv4 || typ == etherIPv6 {
		ip := slices.Clone(m[ipoib.HeaderLen:])
		if err := requireSums(ip); err != nil {
			w.tb.Errorf("on the wire: %v: % x", err, ip[:min(len(ip), 80)])
		}
		if n := packetLen(ip); n != len(ip) {
			w.tb.Errorf("a packet of %d bytes in a message of %d", n, len(ip))
		}
		w.packets = append(w.packets, ip)
	}
}

// compare compares the packets on the wire with those that the sender handed over and those that
// the receiver got.
func (w *wireWitness) compare(from, to *tapCapture) {
	w.tb.Helper()
	sent, _ := cutAll(w.tb, from.sent)
	received, _ := cutAll(w.tb, to.received)
	w.same("sent and on the wire", sorted(sent), sorted(w.packets), slices.Clone)
	w.same("on the wire and received", sorted(w.packets), sorted(received), withoutID)
}

func (w *wireWitness) same(what string, a, b map[conversation][][]byte, normal func([]byte) []byte) {
	w.tb.Helper()
	for s := range b {
		if _, ok := a[s]; !ok {
			w.tb.Errorf("%s: packets from nowhere: %+v", what, s)
		}
	}
	for s, x := range a {
		y := b[s]
		for i := range min(len(x), len(y)) {
			if !bytes.Equal(oneZero(normal(x[i])), oneZero(normal(y[i]))) {
				w.tb.Errorf("%s, %+v: packet %d of %d differs:\n% x\n% x", what, s, i, len(x), x[i][:min(len(x[i]), 100)], y[i][:min(len(y[i]), 100)])
				return
			}
		}
		if len(x) != len(y) {
			w.tb.Errorf("%s, %+v: %d and %d packets", what, s, len(x), len(y))
		}
	}
}

// oneZero replaces one of the two forms of zero that a TCP checksum has (RFC 1624): the kernel
// writes either.
func oneZero(ip []byte) []byte {
	if s, start, _ := conversationOf(ip); s.protocol == unix.IPPROTO_TCP && binary.BigEndian.Uint16(ip[start+tcpSumAt:]) == 0xffff {
		ip = slices.Clone(ip)
		binary.BigEndian.PutUint16(ip[start+tcpSumAt:], 0)
	}
	return ip
}

// The reference cuts a frame into packets with right checksums, and no changed bit of them is
// taken for right.
func TestReferenceNoticesEveryBit(t *testing.T) {
	rnd := rand.NewChaCha8([32]byte{})
	ip := make([]byte, 5000)
	_, _ = rnd.Read(ip)
	ip[0], ip[6], ip[7], ip[9] = 0x45, 0x40, 0, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[ip4Len+tcpOffsetAt] = 5 << 4
	f := offloaded{frame: append(make([]byte, etherLen), ip...)}
	f.header = [virtioLen]byte{virtioNeedsCsum, 1, 0, 0, 1000 & 0xff, 1000 >> 8, etherLen + ip4Len, 0, tcpSumAt}
	packets, err := f.cut()
	if err != nil || len(packets) != 5 {
		t.Fatalf("%d packets, %v", len(packets), err)
	}
	joined := []byte{}
	for i, p := range packets {
		joined = append(joined, p[ip4Len+20:]...)
		if err := requireSums(p); err != nil {
			t.Errorf("packet %d: %v", i, err)
		}
		for at := range p {
			p[at] ^= 0x10
			if at >= ip4Len && requireSums(p) == nil {
				t.Errorf("packet %d, byte %d: a changed bit is not noticed", i, at)
			}
			p[at] ^= 0x10
		}
	}
	if !bytes.Equal(joined, ip[ip4Len+20:]) {
		t.Error("the payload differs")
	}
}
