package neigh

import (
	"bytes"
	"encoding/hex"
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// unhex returns bytes written with spaces.
func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.Join(bytes.Fields([]byte(s)), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// only returns the single action of its type.
func only[A Action](t *testing.T, actions []Action) A {
	t.Helper()
	var found []A
	for _, a := range actions {
		if a, ok := a.(A); ok {
			found = append(found, a)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d actions of type %T in %v, want one", len(found), *new(A), actions)
	}
	return found[0]
}

// TestARPBytes: RFC 826 and RFC 4391 section 9.2, byte by byte, both ways.
func TestARPBytes(t *testing.T) {
	b := attachedBench(t, Config{})
	sent := only[SendFabric](t, b.step(FromHost{unhex(t, `
		ffffffffffff 020000000001 0806
		0001 0800 06 04 0001
		020000000001 0a000001 000000000000 0a000002`)}))
	want := unhex(t, `0806 0000
		0020 0800 14 04 0001
		00 000011 00000000000000000000ffffc0000201 0a000001
		00 000000 00000000000000000000000000000000 0a000002`)
	if !bytes.Equal(sent.Msg, want) || sent.Dest != broadcast {
		t.Errorf("request to %v\n got %x\nwant %x", sent.Dest, sent.Msg, want)
	}
	got := only[SendHost](t, b.step(FromFabric{From: peerB.key(), Msg: unhex(t, `0806 0000
		0020 0800 14 04 0002
		80 000022 00000000000000000000ffffc0000202 0a000002
		00 000011 00000000000000000000ffffc0000201 0a000001`)}))
	want = unhex(t, `
		020000000001 7a60b6620d75 0806
		0001 0800 06 04 0002
		7a60b6620d75 0a000002 020000000001 0a000001
		000000000000000000000000000000000000`)
	if !bytes.Equal(got.Frame, want) {
		t.Errorf("reply\n got %x\nwant %x", got.Frame, want)
	}
}

// TestRARP: the sender of a RARP request (RFC 903) may not know its address, so the table
// learns none.
func TestRARP(t *testing.T) {
	b := attachedBench(t, Config{})
	arp := ipoib.ARP{Op: 3, SHA: peerB.addr(), SPA: ip(ipB), THA: peerB.addr(), TPA: ip("0.0.0.0")}
	msg := arp.Append(newMessage(ipoib.EtherTypeRARP))
	f, _ := parseFrame(only[SendHost](t, b.step(FromFabric{Msg: msg, From: peerB.key(), Multicast: true})).Frame)
	got, err := ipoib.ParseEtherARP(f.body())
	mac := b.macOf(peerB)
	if err != nil || f.typ != ipoib.EtherTypeRARP || !f.dst.IsBroadcast() || got.SHA != mac || got.THA != mac {
		t.Errorf("frame %+v, %+v, %v, want a broadcast RARP frame with the peer's MAC", f, got, err)
	}
	if len(b.table.peers.live.byIP) != 0 {
		t.Error("the table learnt an address from a RARP request")
	}
}

// ndCase is an ND message and the link-layer address option that it must have.
type ndCase struct {
	name string
	msg  ndMessage
}

func ndCases(typeOf func(byte) []byte) []ndCase {
	mtu := []byte{5, 1, 0, 0, 0, 0, 5, 0xdc} // an option without a link-layer address
	a, b, all := ip(llA), ip(llB), ip("ff02::1")
	with := func(option byte) []byte { return append(typeOf(option), mtu...) }
	return []ndCase{
		{"RS", nd(ipoib.NDRouterSolicit, b, ip("ff02::2"), a, with(1))},
		{"RA", nd(ipoib.NDRouterAdvert, b, all, a, with(1))},
		{"NS", nd(ipoib.NDNeighborSolicit, b, ip("ff02::1:ff00:a"), a, with(1))},
		{"NA", nd(ipoib.NDNeighborAdvert, b, all, b, with(2))},
		{"Redirect", nd(ipoib.NDRedirect, b, a, ip("fe80::c"), with(2))},
	}
}

// TestNDFromFabric: every type, byte by byte: the option has 8 bytes instead of
// 24, lengths and checksum are correct, and the rest is unchanged.
func TestNDFromFabric(t *testing.T) {
	got := ndCases(func(o byte) []byte { return ipoibLink(o, peerB) })
	want := ndCases(func(o byte) []byte { return etherLink(o, plainMAC(peerB.gid)) })
	for i, c := range got {
		b := attachedBench(t, Config{})
		frame := only[SendHost](t, b.step(fabricND(peerB, c.msg))).Frame
		if !bytes.Equal(frame[etherHeaderLen:], want[i].msg.packet()) {
			t.Errorf("%s\n got %x\nwant %x", c.name, frame[etherHeaderLen:], want[i].msg.packet())
		}
	}
}

// TestNDFromHost is TestNDFromFabric for the other direction.
func TestNDFromHost(t *testing.T) {
	got := ndCases(func(o byte) []byte { return etherLink(o, ownMAC) })
	want := ndCases(func(o byte) []byte { return ipoibLink(o, selfEnd) })
	for i, c := range got {
		b := attachedBench(t, Config{})
		sent := only[SendFabric](t, b.step(hostND(ownMAC, ipoib.GroupMAC(ip("ff02::1")), c.msg)))
		if !bytes.Equal(sent.Msg[ipoib.HeaderLen:], want[i].msg.packet()) {
			t.Errorf("%s\n got %x\nwant %x", c.name, sent.Msg[ipoib.HeaderLen:], want[i].msg.packet())
		}
	}
}

// TestNDTooLong: an RA that fills the MTU has no room for the longer option.
func TestNDTooLong(t *testing.T) {
	b := attachedBench(t, Config{})
	filler := append([]byte{99, 240}, make([]byte, 240*8-2)...)
	m := nd(ipoib.NDRouterAdvert, ip(llA), ip("ff02::1"), ip(llA), append(etherLink(1, ownMAC), filler...))
	for len(m.packet()) < 2044-8 {
		m.options = append(m.options, 98, 1, 0, 0, 0, 0, 0, 0)
	}
	b.step(hostND(ownMAC, ipoib.GroupMAC(m.dst), m))
	wantDrops(t, b, DropTooLong, 1)
}

// TestForgedNDTeachesNothing: the table learns nothing from an option with an
// address other than the sender's, nor from an option that the message type
// does not define.
func TestForgedNDTeachesNothing(t *testing.T) {
	b := attachedBench(t, Config{})
	ns := nd(ipoib.NDNeighborSolicit, ip(llB), ip("ff02::1:ff00:a"), ip(llA), ipoibLink(1, peerC))
	b.step(fabricND(peerB, ns))
	wantDrops(t, b, DropForged, 1)
	ns.options = append(ipoibLink(1, peerB), ipoibLink(2, peerC)...)
	b.step(fabricND(peerB, ns))
	wantDrops(t, b, DropUnmapped, 1)
	if len(b.table.peers.live.byEndpoint) != 1 || b.table.peers.live.byEndpoint[peerC] != nil {
		t.Errorf("peers: %v, want only the sender of the valid messages", b.table.Peers())
	}
}

// TestRouterFlag: the announcement of a router parses, so its checksum is
// correct, and has the router flag.
func TestRouterFlag(t *testing.T) {
	for _, src := range []string{"fe80::1", "fe80::ffff:ffff:ffff:ffff", "2001:db8::7fff", "fe80::8000:0"} {
		packet := ipoib.AppendUnsolicitedNA(nil, ip(src), selfEnd.addr())
		setRouterFlag(packet)
		got, err := ipoib.ParseND(packet, ipoib.FormIPoIB)
		if err != nil || got.Flags != ipoib.NAFlagRouter|ipoib.NAFlagOverride {
			t.Errorf("%s: flags %#x, %v, want router and override", src, got.Flags, err)
		}
	}
}

// TestRefusedFrames: one frame of every kind that is refused on arrival.
func TestRefusedFrames(t *testing.T) {
	good := hostIP(ownMAC, ipoib.Broadcast, ip(ipA), ip("255.255.255.255")).Frame
	with := func(change func(f []byte) []byte) FromHost { return FromHost{change(bytes.Clone(good))} }
	message := fabricARP(peerB, ipoib.ARPRequest, ipB, ipA, true)
	from := func(e endpoint) FromFabric {
		return FromFabric{Msg: message.Msg, From: e.key(), Multicast: true}
	}
	for _, c := range []struct {
		why Reason
		ev  Event
	}{
		{DropRunt, FromHost{}},
		{DropRunt, FromHost{good[:13]}},
		{DropRunt, FromHost{good[:14]}},
		{DropRunt, FromHost{good[:33]}},
		{DropRunt, with(func(f []byte) []byte { f[14] = 0x65; return f })}, // version 6
		{DropOversize, with(func(f []byte) []byte { return append(f, make([]byte, 2044)...) })},
		{DropEtherType, with(func(f []byte) []byte { f[12] = 0x81; f[13] = 0; return f })},
		{DropBadSource, with(func(f []byte) []byte { f[6] |= 1; return f })},
		{DropBadSource, with(func(f []byte) []byte { clear(f[6:12]); return f })},
		{DropToSelf, with(func(f []byte) []byte { copy(f, ownMAC[:]); return f })},
		{DropBadARP, with(func(f []byte) []byte { f[13] = 0x06; return f })},
		{DropBadARP, FromHost{append(newFrame(ipoib.Broadcast, ownMAC, ipoib.EtherTypeARP),
			hostARP(ipoib.MAC{2, 9}, ipoib.Broadcast, ipoib.ARPRequest, ipA, ipB).Frame[etherHeaderLen:]...)}},
		{DropBadND, hostND(ownMAC, ipoib.Broadcast, ndMessage{typ: ipoib.NDNeighborSolicit, src: ip(llA), dst: ip(llB)})},
		{DropRunt, FromFabric{}},
		{DropRunt, FromFabric{Msg: message.Msg[:3]}},
		{DropBadARP, FromFabric{Msg: message.Msg[:59], From: peerB.key()}},
		{DropRunt, FromFabric{Msg: []byte{8, 0, 0, 0, 0x45}, From: peerB.key()}},
		{DropEtherType, FromFabric{Msg: []byte{0x81, 0, 0, 0, 0x45}, From: peerB.key()}},
		{DropBadSource, from(endpoint{hca.GID{}, 0x22})},
		{DropBadSource, from(endpoint{gidOf("224.0.0.1"), 0x22})},
		{DropBadSource, from(endpoint{peerB.gid, hca.QPNGSI})},
		{DropBadSource, from(endpoint{peerB.gid, hca.QPNMulticast})},
		{DropOwn, from(selfEnd)},
		{DropForged, from(peerC)},
	} {
		b := attachedBench(t, Config{})
		if out := b.step(c.ev); len(out) != 0 {
			t.Errorf("%v: actions %v, want none", c.why, out)
		}
		wantDrops(t, b, c.why, 1)
	}
}

// TestTruncations: a truncated message has no effect except on the counters.
func TestTruncations(t *testing.T) {
	arp := fabricARP(peerB, ipoib.ARPRequest, ipB, ipA, true)
	ns := fabricND(peerB, nd(ipoib.NDNeighborSolicit, ip(llB), ip("ff02::1:ff00:a"), ip(llA), ipoibLink(1, peerB)))
	for _, whole := range []FromFabric{arp, ns} {
		b := attachedBench(t, Config{})
		for n := range whole.Msg {
			part := whole
			part.Msg = whole.Msg[:n]
			if typ, body, _ := ipoib.ParseHeader(part.Msg); typ == ipoib.EtherTypeIPv6 && len(body) >= 40 && !ipoib.IsND(body) {
				continue // an IPv6 packet of any kind
			}
			if out := b.step(part); len(out) != 0 {
				t.Fatalf("a message of %d bytes: actions %v, want none", n, out)
			}
		}
		if out := b.step(whole); len(out) != 1 {
			t.Errorf("the whole message: %v", out)
		}
	}
}

// TestEventBytesStay: the table neither modifies nor keeps a slice of an event.
func TestEventBytesStay(t *testing.T) {
	b := knownBench(t)
	stale := hostIP(ownMAC, ipoib.MAC{2, 7}, ip(ipA), ip(ipB)).Frame // goes to B, readdressed
	unknown := hostIP(ownMAC, ipoib.MAC{2, 7}, ip(ipA), ip(ipC)).Frame
	before := bytes.Clone(stale)
	sent := only[SendFabric](t, b.step(FromHost{stale}))
	if !bytes.Equal(stale, before) {
		t.Error("the frame was changed")
	}
	want := bytes.Clone(sent.Msg)
	b.step(FromHost{unknown})
	clear(stale)
	clear(unknown)
	out := b.step(fabricARP(peerC, ipoib.ARPReply, ipC, ipA, false))
	kept := only[SendFabric](t, b.ready(out))
	if !bytes.Equal(sent.Msg, want) || kept.Msg[4] != 0x45 {
		t.Errorf("a message aliases its event: %x, %x", sent.Msg, kept.Msg)
	}
}
