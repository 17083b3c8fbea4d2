package hcatest

import (
	"bytes"
	"fmt"
	"slices"

	"ipoibd/hca"
)

var offloadChecks = []check{
	{name: "offload/limits", run: offloadLimits},
	{name: "offload/checksum_refused", run: csumRefused, needs: func(_ Features, h Host) bool {
		return !h.Dev.Attr().IPCsum
	}},
	{name: "offload/checksum_filled_in", run: csumFilledIn, needs: hasCsum},
	{name: "offload/checksum_of_nothing", run: csumOfNothing, needs: hasCsum},
	{name: "offload/checksum_ok_is_true", run: csumOKIsTrue},
	{name: "lso/refused", run: lsoRefused, needs: func(f Features, h Host) bool { return !hasLSO(f, h) }},
	{name: "lso/cuts", run: lsoCuts, needs: hasLSO},
	{name: "lso/longest", run: lsoLongest, needs: hasLSO},
	{name: "lso/impossible", run: lsoImpossible, needs: hasLSO},
	{name: "lso/gathers", run: lsoGathers, needs: hasLSO},
	{name: "lso/copies_header", run: lsoCopiesHeader, needs: func(f Features, h Host) bool {
		return hasLSO(f, h) && h.Stall != nil
	}},
	{name: "lso/among_others", run: lsoAmongOthers, needs: hasLSO},
	{name: "lso/to_itself", run: lsoToItself, needs: hasLSO},
	{name: "lso/group", run: lsoGroup, needs: func(f Features, h Host) bool {
		return hasLSO(f, h) && hasGroup(f, h) && f.OwnGroupLoops
	}},
	{name: "lso/queue_full", run: lsoQueueFull, needs: hasLSO},
	{name: "lso/flushed", run: lsoFlushed, needs: hasLSO},
	{name: "lso/reset", run: lsoReset, needs: hasLSO},
	{name: "lso/fails_midway", run: lsoFailsMidway, needs: func(f Features, h Host) bool {
		return hasLSO(f, h) && f.ChecksProtection
	}},
	{name: "lso/segment_too_long", run: lsoSegmentTooLong, needs: func(f Features, h Host) bool {
		return hasLSO(f, h) && f.LongSendIsErr
	}},
	{name: "lso/protection", run: lsoProtection, needs: func(f Features, h Host) bool {
		return hasLSO(f, h) && f.ChecksProtection
	}},
}

func hasCsum(_ Features, h Host) bool { return h.Dev.Attr().IPCsum }

func hasLSO(_ Features, h Host) bool { return h.Dev.Attr().MaxTSO > 0 }

// A device that cuts large sends also fills in checksums, and accepts the longest send that the
// host's kernel produces: 64 KiB less the headers.
func offloadLimits(b *bench) {
	a := b.a.Dev.Attr()
	if a.MaxTSO < 0 || a.MaxTSO > 0 && (!a.IPCsum || a.MaxTSO < 1<<16-200) || a.USO && a.MaxTSO == 0 {
		b.Errorf("attributes %+v", a)
	}
}

// large returns a large send of a packet to another end. Its payload is written to the start of
// the send memory.
func (e *end) large(id uint64, to *end, p *packet, mss int) hca.SendWR {
	e.Helper()
	wr := e.wr(id, to, e.tx.SGE(0, copy(e.tx.Bytes(), p.payload)))
	header := *p
	header.partial = p.routed
	wr.LSO = hca.LSO{Header: header.message()[:p.headerLen()], MSS: mss}
	return wr
}

// wantNext receives messages, in order.
func (e *end) wantNext(what string, want ...[]byte) {
	e.Helper()
	for i, wc := range e.next(e.recv, len(want)) {
		if got := e.received(wc); !bytes.Equal(got, want[i]) {
			e.Fatalf("%s: message %d of %d\n%x, want\n%x", what, i, len(want), got, want[i])
		}
	}
}

// kinds returns the packets that a device with large sends must cut.
func (b *bench) kinds() []packet {
	kinds := []packet{
		{flags: tcpACK | tcpPSH | tcpFIN | tcpCWR, options: pattern(12), id: 0xfffe, seq: 0xfffffff0},
		{flags: tcpACK, v6: true, options: pattern(40)},
	}
	if b.a.Dev.Attr().USO {
		kinds = append(kinds, packet{udp: true, id: 7}, packet{udp: true, v6: true})
	}
	return kinds
}

func lsoCuts(b *bench) {
	for _, p := range append(b.kinds(), packet{v6: true, routed: true, flags: tcpACK, options: pattern(12)}) {
		x, y := b.pair()
		for _, c := range []struct{ payload, mss int }{
			{0, 100},
			{1, 1},
			{5, 1},
			{99, 100},
			{100, 100},
			{101, 100},
			{200, 100},
			{1400, 100},
			{2700, 901},
			{2 * (x.gid().MaxPayload - p.headerLen()), x.gid().MaxPayload - p.headerLen()},
		} {
			p.payload = pattern(c.payload)
			want := p.segments(c.mss)
			y.postRecv(len(want))
			wr := x.large(5, y, &p, c.mss)
			kept := slices.Clone(wr.LSO.Header)
			x.postSend(wr)
			x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 5)
			y.wantNext(fmt.Sprintf("IPv6 %v, UDP %v, %+v", p.v6, p.udp, c), want...)
			if !bytes.Equal(wr.LSO.Header, kept) || !bytes.Equal(x.tx.Bytes()[:len(p.payload)], p.payload) {
				b.Errorf("%+v: the send changed its header or its payload", c)
			}
		}
		x.wantNone(x.send)
		y.wantNone(y.recv)
	}
}

// The largest send that the device declares arrives as a whole, in more segments than one
// batch has.
func lsoLongest(b *bench) {
	s := defaultSpec()
	s.qp.SendWRs, s.sendCQE = depth*8, depth*8 // a device may need an entry for each segment
	s.qp.RecvWRs, s.recvCQE = depth*8, depth*8
	x, y := b.newEnd(b.a, s), b.newEnd(b.b, s)
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	p := b.kinds()[0]
	p.payload = pattern(min(b.a.Dev.Attr().MaxTSO, depth*slotSize))
	const size = depth * slotSize / (depth * 8)
	mss := len(p.payload)/(depth*8) + 1
	want := p.segments(mss)
	var wrs []hca.RecvWR
	for i := range want {
		wrs = append(wrs, hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{y.rx.SGE(i*size, size)}})
	}
	if n, err := y.qp.PostRecv(wrs); n != len(wrs) {
		b.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
	}
	x.postSend(x.large(1, y, &p, mss))
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
	for i, wc := range y.next(y.recv, len(want)) {
		got := y.rx.Bytes()[i*size+hca.GRHLen : i*size+int(wc.ByteLen)]
		if wc.ID != uint64(i) || wc.Status != hca.WCSuccess || !bytes.Equal(got, want[i]) {
			b.Fatalf("segment %d of %d: %+v", i, len(want), wc)
		}
	}
}

// Impossible requests are refused, and those before them are sent.
func lsoImpossible(b *bench) {
	x, y := b.pair()
	p := b.kinds()[0]
	p.payload = pattern(300)
	syn, udp := p, p
	syn.flags |= tcpSYN
	udp.udp = true
	for what, change := range map[string]func(*hca.SendWR){
		"negative MSS": func(wr *hca.SendWR) { wr.LSO.MSS = -1 },
		"no header":    func(wr *hca.SendWR) { wr.LSO.Header = nil },
		"short header": func(wr *hca.SendWR) { wr.LSO.Header = wr.LSO.Header[:hca.EncapLen+39] },
		"long header": func(wr *hca.SendWR) {
			wr.LSO.Header = append(wr.LSO.Header, make([]byte, hca.MaxLSOHeader)...)
		},
		"not IP":          func(wr *hca.SendWR) { wr.LSO.Header[hca.EncapLen] = 0 },
		"fragment":        func(wr *hca.SendWR) { wr.LSO.Header[hca.EncapLen+6] = 0x20 },
		"ICMP":            func(wr *hca.SendWR) { wr.LSO.Header[hca.EncapLen+9] = 1 },
		"SYN":             func(wr *hca.SendWR) { wr.LSO.Header = syn.message()[:syn.headerLen()] },
		"UDP without USO": func(wr *hca.SendWR) { wr.LSO.Header = udp.message()[:udp.headerLen()] },
		"too many segments": func(wr *hca.SendWR) {
			wr.LSO.MSS, wr.SGList = 1, []hca.SGE{x.tx.SGE(0, hca.MaxLSOSegments+1)}
		},
		"above MaxTSO": func(wr *hca.SendWR) {
			all := x.tx.SGE(0, len(x.tx.Bytes()))
			wr.SGList = []hca.SGE{all, all}
		},
	} {
		a := b.a.Dev.Attr()
		if a.USO && what == "UDP without USO" || a.MaxTSO >= 2*len(x.tx.Bytes()) && what == "above MaxTSO" {
			continue
		}
		good, bad := x.wr(1, y, x.message(1, []byte(what))), x.large(2, y, &p, 100)
		change(&bad)
		y.postRecv(1)
		n, err := x.qp.PostSend([]hca.SendWR{good, bad, good})
		b.wantErr(err, hca.ErrInvalid, what)
		if n != 1 {
			b.Fatalf("%s: %d sends accepted", what, n)
		}
		x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
		y.wantNext(what, []byte(what))
	}
}

// The payload may be in two pieces, cut anywhere.
func lsoGathers(b *bench) {
	x, y := b.pair()
	p := b.kinds()[0]
	p.payload = pattern(1000)
	want := p.segments(333)
	for _, at := range []int{0, 1, 332, 333, 334, 500, 999, 1000} {
		y.postRecv(len(want))
		wr := x.large(1, y, &p, 333)
		wr.SGList = []hca.SGE{x.message(0, p.payload[:at]), x.message(1, p.payload[at:])}
		x.postSend(wr)
		x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
		y.wantNext(fmt.Sprintf("pieces of %d and %d bytes", at, 1000-at), want...)
	}
}

// The header belongs to the caller again when PostSend returns.
func lsoCopiesHeader(b *bench) {
	x, y := b.pair()
	p := b.kinds()[0]
	p.payload = pattern(500)
	want := p.segments(100)
	y.postRecv(len(want))
	x.host.Stall(true)
	wr := x.large(1, y, &p, 100)
	x.postSend(wr)
	clear(wr.LSO.Header)
	x.host.Stall(false)
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
	y.wantNext("the header was overwritten after the post", want...)
}

// Large and other sends keep their order, and only signaled ones complete.
func lsoAmongOthers(b *bench) {
	s := defaultSpec()
	s.qp.SignalAll = false
	x, y := b.newEnd(b.a, s), b.newEnd(b.b, defaultSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	y.postRecv(depth)
	p := b.kinds()[0]
	p.payload = pattern(250)
	small := x.wr(1, y, x.message(1, []byte("small")))
	first, second := x.large(2, y, &p, 100), x.large(3, y, &p, 60)
	second.Flags = hca.SendSignaled
	last := x.wr(4, y, x.message(2, []byte("last")))
	last.Flags = hca.SendSignaled
	x.postSend(small, first, second, last)
	x.wantStatus(x.next(x.send, 2), hca.WCSuccess, 3, 4)
	y.wantNext("mixed", slices.Concat(
		[][]byte{[]byte("small")},
		p.segments(100),
		p.segments(60),
		[][]byte{[]byte("last")},
	)...)
	x.wantNone(x.send)
}

// A large send of a QP to itself also arrives in segments.
func lsoToItself(b *bench) {
	x := b.newEnd(b.a, defaultSpec())
	x.to(hca.QPRTS)
	p := b.kinds()[0]
	p.payload = pattern(250)
	want := p.segments(100)
	x.postRecv(len(want))
	x.postSend(x.large(1, x, &p, 100))
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
	x.wantNext("to itself", want...)
}

// Every member of a group, the sender included, receives each segment once.
func lsoGroup(b *bench) {
	x, y := b.pair()
	kinds := b.kinds()
	p := kinds[len(kinds)-1] // UDP, if the device cuts it
	p.payload = pattern(250)
	want := p.segments(100)
	for _, e := range []*end{x, y} {
		e.join()
		e.postRecv(len(want))
	}
	wr := x.large(1, y, &p, 100)
	wr.UD.AH, wr.UD.QPN = x.ah(b.f.MGID, b.f.MLID), hca.QPNMulticast
	x.postSend(wr)
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
	y.wantNext("to a group", want...)
	x.wantNext("own group", want...)
	x.wantNone(x.recv)
}

// Segments that do not fit the GID fail the request once, and none of them is sent.
func lsoSegmentTooLong(b *bench) {
	x, y := b.pair()
	y.postRecv(2)
	p := b.kinds()[0]
	mss := x.gid().MaxPayload - p.headerLen() + 1
	p.payload = pattern(2 * mss)
	x.postSend(x.large(9, y, &p, mss))
	if s := x.status(x.next(x.send, 1), 9); s[0] == hca.WCSuccess {
		b.Errorf("status %v of segments that are too long", s)
	}
	x.wantNone(x.send)
	y.wantNone(y.recv)
}

// A payload outside the registered memory fails the request.
func lsoProtection(b *bench) {
	x, y := b.pair()
	p := b.kinds()[0]
	p.payload = pattern(300)
	wr := x.large(9, y, &p, 100)
	wr.SGList[0].LKey = ^wr.SGList[0].LKey
	x.postSend(wr)
	got := x.status(x.next(x.send, 1), 9)
	if !slices.Contains(b.f.sendErrors(), got[0]) {
		b.Errorf("status %v, want one of %v", got, b.f.sendErrors())
	}
}

// A device without large sends refuses them, and sends what precedes them.
func lsoRefused(b *bench) {
	x, y := b.pair()
	p := packet{flags: tcpACK, payload: pattern(100)}
	y.postRecv(1)
	good := x.wr(1, y, x.message(1, []byte("before it")))
	n, err := x.qp.PostSend([]hca.SendWR{good, x.large(2, y, &p, 50), good})
	b.wantErr(err, hca.ErrInvalid, "post a large send")
	if n != 1 {
		b.Errorf("%d sends accepted, want 1", n)
	}
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
	y.wantNext("before a large send", []byte("before it"))
}

func csumRefused(b *bench) {
	x, y := b.pair()
	p := packet{flags: tcpACK, payload: pattern(100)}
	wr := x.wr(1, y, x.message(0, p.message()))
	wr.Flags = hca.SendIPCsum
	n, err := x.qp.PostSend([]hca.SendWR{wr})
	b.wantErr(err, hca.ErrInvalid, "post a send without checksums")
	if n != 0 {
		b.Errorf("%d sends accepted, want 0", n)
	}
}

// The checksums of every kind of packet are filled in on the wire, and not in the memory of
// the send.
func csumFilledIn(b *bench) {
	x, y := b.pair()
	for _, p := range []packet{
		{flags: tcpSYN, options: pattern(20)},
		{flags: tcpACK | tcpPSH, payload: pattern(901)},
		{v6: true, flags: tcpACK, payload: pattern(700)},
		{udp: true, payload: pattern(33)},
		{udp: true, v6: true},
	} {
		for _, at := range []int{0, 3, 24, 45, p.headerLen()} { // where the list is cut
			want, sent := p.message(), p.without()
			y.postRecv(1)
			wr := x.wr(1, y, x.message(0, sent[:at]), x.message(1, sent[at:]))
			wr.Flags = hca.SendIPCsum
			x.postSend(wr)
			x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
			y.wantNext(fmt.Sprintf("IPv6 %v, UDP %v, cut at %d", p.v6, p.udp, at), want)
			if !bytes.Equal(x.tx.Bytes()[:at], sent[:at]) ||
				!bytes.Equal(x.tx.Bytes()[slotSize:][:len(sent)-at], sent[at:]) {
				b.Error("the send changed its memory")
			}
		}
	}
}

// Messages without TCP or UDP checksums are sent unchanged, except for the checksum of an IPv4
// header.
func csumOfNothing(b *bench) {
	x, y := b.pair()
	p := packet{udp: true, payload: pattern(50)}
	icmp := p.message()
	icmp[hca.EncapLen+9] = 1
	fragment := p.message()
	fragment[hca.EncapLen+6] = 0x20
	text := []byte("this message is no packet of the Internet Protocol")
	for _, msg := range [][]byte{{}, {1}, text, icmp, fragment} {
		want := slices.Clone(msg)
		if len(msg) > 50 {
			ip := want[hca.EncapLen:][:20]
			ip[10], ip[11] = 0, 0
			sum := checksum(ip)
			ip[10], ip[11] = byte(sum>>8), byte(sum)
		}
		y.postRecv(1)
		wr := x.wr(1, y, x.message(0, msg))
		wr.Flags = hca.SendIPCsum
		x.postSend(wr)
		x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
		y.wantNext("no checksum", want)
	}
}

// A completion does not claim that a wrong checksum is right.
func csumOKIsTrue(b *bench) {
	x, y := b.pair()
	for _, p := range []packet{
		{flags: tcpACK, payload: pattern(100)},
		{v6: true, flags: tcpACK, payload: pattern(100)},
		{udp: true, payload: pattern(100)},
		{v6: true, udp: true, payload: pattern(100)},
	} {
		y.postRecv(1)
		x.postSend(x.wr(1, y, x.message(0, p.without())))
		x.next(x.send, 1)
		if wc := y.next(y.recv, 1)[0]; wc.Flags&hca.WCFlagIPCsumOK != 0 {
			b.Errorf("IPv6 %v, UDP %v: %+v claims that wrong checksums are right", p.v6, p.udp, wc)
		}
	}
}
