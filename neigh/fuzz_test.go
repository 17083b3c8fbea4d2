package neigh

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// FuzzFromHost gives the table two arbitrary frames from the host. Every
// message to the fabric carries only our own address as its sender's.
func FuzzFromHost(f *testing.F) {
	for _, ev := range []FromHost{
		hostARP(ownMAC, ipoib.Broadcast, ipoib.ARPRequest, ipA, ipB),
		hostARP(ownMAC, plainMAC(peerB.gid), ipoib.ARPReply, ipA, ipB),
		hostIP(ownMAC, plainMAC(peerB.gid), ip(ipA), ip(ipB)),
		hostIP(ownMAC, ipoib.MAC{2, 7}, ip(ipA), ip(ipC)),
		hostIP(ownMAC, ipoib.MAC{2, 7}, ip(llA), ip(llB)),
	} {
		f.Add(ev.Frame, ev.Frame)
	}
	for _, c := range ndCases(func(o byte) []byte { return etherLink(o, ownMAC) }) {
		f.Add(hostND(ownMAC, ipoib.GroupMAC(c.msg.dst), c.msg).Frame, []byte{})
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		b := knownBench(t)
		b.meet(peerC, ipC)
		for _, frame := range [][]byte{first, second} {
			for _, a := range append(b.step(FromHost{frame}), b.ready(b.out)...) {
				if s, ok := a.(SendFabric); ok {
					checkSpeaksForUs(t, b, s.Msg)
				}
			}
		}
		b.step(Detached{})
	})
}

func checkSpeaksForUs(t *testing.T, b *bench, msg []byte) {
	typ, body, err := ipoib.ParseHeader(msg)
	if err != nil || !typ.Carried() || len(body) > b.table.host.link.mtu {
		t.Fatalf("invalid message %x: %v", msg, err)
	}
	if typ == ipoib.EtherTypeARP || typ == ipoib.EtherTypeRARP {
		if arp, err := ipoib.ParseARP(body); err != nil || arp.SHA != selfEnd.addr() {
			t.Fatalf("ARP %+v, %v, want our own address as the sender's", arp, err)
		}
	}
	if typ != ipoib.EtherTypeIPv6 || !ipoib.IsND(body) {
		return
	}
	nd, err := ipoib.ParseND(body, ipoib.FormIPoIB)
	if err != nil {
		t.Fatalf("invalid ND %x: %v", body, err)
	}
	if link, ok := nd.Link.IPoIB(); ok && nd.Type != ipoib.NDRedirect && link != selfEnd.addr() {
		t.Fatalf("ND %+v speaks for %v", nd, link)
	}
}

// FuzzFromFabric gives the table two arbitrary messages from the fabric. Every
// frame to the host carries the MAC of its real sender.
func FuzzFromFabric(f *testing.F) {
	add := func(ev FromFabric) {
		f.Add(ev.Msg, ev.Msg, ev.From.GID[:], uint32(ev.From.QPN), ev.Multicast)
	}
	add(fabricARP(peerB, ipoib.ARPRequest, ipB, ipA, true))
	add(fabricARP(peerB, ipoib.ARPReply, ipB, ipA, false))
	add(fabricARP(endpoint{peerB.gid, 0x23}, ipoib.ARPRequest, ipB, ipB, true))
	for _, c := range ndCases(func(o byte) []byte { return ipoibLink(o, peerC) }) {
		add(fabricND(peerC, c.msg))
	}
	for _, reply := range []bool{false, true} {
		add(FromFabric{ipoib.Echo{Reply: reply, ID: 1}.Message(56), peerB.key(), false})
	}
	for _, to := range []string{ipA, "10.0.0.77", "198.51.100.1"} {
		add(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipB), ip(to))...), peerB.key(), false})
	}
	f.Fuzz(func(t *testing.T, first, second, gid []byte, qpn uint32, multicast bool) {
		b := knownBench(t)
		var e endpoint
		copy(e.gid[:], gid)
		e.qpn = hca.QPN(qpn)
		for _, msg := range [][]byte{first, second} {
			for _, a := range b.step(FromFabric{msg, e.key(), multicast}) {
				if s, ok := a.(SendHost); ok {
					checkBearsMAC(t, b, e, s.Frame)
				}
			}
		}
		b.step(Detached{})
	})
}

// FuzzFromSubnet gives the table two arbitrary messages from a port of a subnet, and answers what it asks. Every frame to
// the host carries the MAC of a peer whose path leads to that port, and whose queue pair has sent the message.
func FuzzFromSubnet(f *testing.F) {
	add := func(ev FromFabric) {
		for _, lid := range []hca.LID{lidB, lidC + 1} {
			f.Add(ev.Msg, ev.Msg, ev.From.GID[:], uint16(lidC), uint32(ev.From.QPN), uint16(lid), ev.Multicast)
		}
	}
	add(fabricARP(peerC, ipoib.ARPRequest, ipC, ipA, true))
	add(fabricARP(peerC, ipoib.ARPReply, ipC, ipA, false))
	for _, c := range ndCases(func(o byte) []byte { return ipoibLink(o, peerC) }) {
		add(fabricND(peerC, c.msg))
	}
	add(FromFabric{ipoib.Echo{ID: 1}.Message(56), peerC.key(), false})
	f.Fuzz(func(t *testing.T, first, second, gid []byte, lid uint16, qpn uint32, leads uint16, multicast bool) {
		b := subnetBench(t)
		b.meetInSubnet(peerB)
		from := hca.UDSource{LID: hca.LID(lid).Base(testLMC), QPN: hca.QPN(qpn)}
		copy(from.GID[:], gid)
		for _, msg := range [][]byte{first, second} {
			out := b.step(FromFabric{msg, from, multicast})
			for _, gid := range pathsAsked(out) {
				out = append(out, b.step(PathFound{gid, hca.UDPath{DLID: hca.LID(leads)}})...)
			}
			for _, a := range out {
				s, ok := a.(SendHost)
				if !ok {
					continue
				}
				frame, _ := parseFrame(s.Frame)
				p := b.table.peers.live.byMAC[frame.src]
				if p == nil || p.lid != from.LID || p.qpn != from.QPN || b.table.lids.of(p.gid) != from.LID {
					t.Fatalf("a frame of %+v, received from %+v", p, from)
				}
				checkBearsMAC(t, b, p.endpoint, s.Frame)
			}
		}
		b.step(Detached{})
	})
}

func checkBearsMAC(t *testing.T, b *bench, e endpoint, raw []byte) {
	f, ok := parseFrame(raw)
	if !ok || len(raw) < minEtherFrame || f.src != b.macOf(e) || !f.typ.Carried() {
		t.Fatalf("frame %x to the host, want the MAC of the peer %v", raw, e)
	}
	if f.isARP() {
		if arp, err := ipoib.ParseEtherARP(f.body()); err != nil || arp.SHA != f.src {
			t.Fatalf("ARP %+v, %v, want the MAC of the frame", arp, err)
		}
		return
	}
	if !f.isND() { // a packet for a station
		return
	}
	nd, err := ipoib.ParseND(f.body(), ipoib.FormEther)
	if err != nil {
		t.Fatalf("invalid ND %x: %v", f.body(), err)
	}
	if link, ok := nd.Link.MAC(); ok && nd.Type != ipoib.NDRedirect && link != f.src {
		t.Fatalf("ND %+v has the link-layer address %v, want the MAC of the frame", nd, link)
	}
}
