package hcatest

import (
	"bytes"
	"fmt"
	"slices"

	"ipoibd/hca"
)

var lroChecks = []check{
	{name: "lro/refused", run: lroRefused, needs: func(_ Features, h Host) bool { return !h.Dev.Attr().LRO }},
	{name: "lro/joins", run: lroJoins, needs: hasLRO},
	{name: "lro/joins_no_others", run: lroJoinsNoOthers, needs: hasLRO},
	{name: "lro/flows", run: lroFlows, needs: hasLRO},
	{name: "lro/senders", run: lroSenders, needs: hasLRO},
	{name: "lro/small_receives", run: lroSmallReceives, needs: hasLRO},
	{name: "lro/scatters", run: lroScatters, needs: hasLRO},
	{name: "lro/to_itself", run: lroToItself, needs: hasLRO},
	{name: "lro/group", run: lroGroup, needs: func(f Features, h Host) bool {
		return hasLRO(f, h) && hasGroup(f, h) && f.OwnGroupLoops
	}},
	{name: "lro/flushed", run: lroFlushed, needs: hasLRO},
	{name: "lro/reset", run: lroReset, needs: hasLRO},
}

func hasLRO(f Features, h Host) bool { return h.Dev.Attr().LRO && hasLSO(f, h) }

// lroSpec is defaultSpec with large receives.
func lroSpec() spec {
	s := defaultSpec()
	s.qp.LRO, s.qp.LROUDP = true, true
	return s
}

// lroPair returns a pair whose second end has large receives.
func (b *bench) lroPair() (x, y *end) {
	b.Helper()
	x, y = b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, lroSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	return x, y
}

// arrival is a message that must arrive.
type arrival struct {
	msg []byte
	p   *packet // nil: it must not be joined
	run int     // it may be joined with messages of the same run
}

// alone returns the arrivals of messages that must not be joined.
func alone(msgs ...[]byte) (out []arrival) {
	for _, m := range msgs {
		out = append(out, arrival{msg: m})
	}
	return out
}

// train returns the arrivals of a packet that is cut. Its segments may be joined.
func (p packet) train(run, mss int) (out []arrival) {
	for _, s := range p.cut(mss) {
		out = append(out, arrival{s.message(), &s, run})
	}
	return out
}

// whole returns the large receive of several segments.
func whole(segments []arrival) []byte {
	p, last := *segments[0].p, segments[len(segments)-1].p
	p.partial, p.payload, p.flags = true, nil, p.flags|last.flags&tcpPSH
	for _, s := range segments {
		p.payload = append(p.payload, s.p.payload...)
	}
	return p.message()
}

// wantRuns receives messages, in order, in receives of any order. It returns how many are in
// each completion.
func (e *end) wantRuns(what string, want []arrival) (runs []int) {
	e.Helper()
	var used [depth]bool
	for len(want) > 0 {
		wc := e.next(e.recv, 1)[0]
		got, n := e.received(wc), max(1, wc.LRO.Segments)
		if wc.ID >= depth || used[wc.ID] || n > len(want) {
			e.Fatalf("%s: completion %+v after %v, %d messages are left", what, wc, runs, len(want))
		}
		used[wc.ID] = true
		expected := want[0].msg
		if wc.LRO.Segments != 0 {
			different := func(a arrival) bool { return a.p == nil || a.run != want[0].run }
			if n < 2 || slices.ContainsFunc(want[:n], different) ||
				wc.Flags&hca.WCFlagIPCsumOK == 0 || wc.LRO.MSS != len(want[0].p.payload) {
				e.Fatalf("%s: completion %+v after %v", what, wc, runs)
			}
			expected = whole(want[:n])
		}
		if !bytes.Equal(got, expected) {
			e.Fatalf("%s: completion of %d messages after %v\n%x, want\n%x", what, n, runs, got, expected)
		}
		runs, want = append(runs, n), want[n:]
	}
	return runs
}

// sendAll sends messages with one post, each in a slot of its own.
func (e *end) sendAll(to *end, arrivals []arrival) {
	e.Helper()
	var wrs []hca.SendWR
	for i, a := range arrivals {
		wrs = append(wrs, e.wr(uint64(i), to, e.message(i, a.msg)))
	}
	e.postSend(wrs...)
	e.next(e.send, len(wrs))
}

// A device without large receives refuses a spec that requests them.
func lroRefused(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	_, err := e.pd.CreateQP(lroSpec().qp, e.send, e.recv)
	b.wantErr(err, hca.ErrInvalid, "create QP with large receives")
}

// What was joined is exactly what was sent, at any length and size of segments. Messages that
// arrive together are joined at least once, and none waits for another.
func lroJoins(b *bench) {
	joined := false
	for _, p := range b.kinds() {
		p.flags &= tcpACK | tcpPSH
		for _, c := range []struct{ payload, mss int }{
			{2, 1}, {15, 1}, {150, 10}, {1400, 100}, {2700, 901}, {8000, 900},
		} {
			x, y := b.lroPair()
			p.payload = pattern(c.payload)
			y.postRecv(depth)
			x.postSend(x.large(5, y, &p, c.mss))
			runs := y.wantRuns(fmt.Sprintf("IPv6 %v, UDP %v, %+v", p.v6, p.udp, c), p.train(0, c.mss))
			joined = joined || len(runs) < len(p.cut(c.mss))
			x.next(x.send, 1)
			y.wantNone(y.recv)
		}
	}
	if !joined {
		b.Error("the device joins nothing")
	}
}

// Messages that differ in a field that cutting does not restore are not joined. They arrive
// unchanged, in order.
func lroJoinsNoOthers(b *bench) {
	base := packet{flags: tcpACK, id: 5, seq: 1000, payload: pattern(300)}
	udp := packet{udp: true, id: 5, payload: pattern(300)}
	first := base.cut(100)[0]
	change := func(p packet, f func(*packet)) []arrival { // of the second of three segments
		cut := p.cut(100)
		f(&cut[1])
		return []arrival{{cut[0].message(), &cut[0], 0}, {cut[1].message(), &cut[1], 1}, {cut[2].message(), &cut[2], 2}}
	}
	damaged := func(p packet) (out []arrival) {
		for _, a := range p.train(0, 100) {
			a.msg[len(a.msg)-1] ^= 1
			out = append(out, arrival{msg: a.msg})
		}
		return out
	}
	for _, c := range []struct {
		what string
		msgs []arrival
	}{
		{"PSH ends a run", slices.Concat(
			(packet{flags: tcpACK | tcpPSH, payload: pattern(200)}).train(0, 100),
			(packet{flags: tcpACK, id: 2, seq: 200, payload: pattern(200)}).train(1, 100),
		)},
		{"PSH of the first", slices.Concat(
			(packet{flags: tcpACK | tcpPSH, payload: pattern(100)}).train(0, 100),
			(packet{flags: tcpACK, id: 1, seq: 100, payload: pattern(200)}).train(1, 100),
		)},
		{"a shorter segment ends a run", slices.Concat(
			(packet{flags: tcpACK, payload: pattern(150)}).train(0, 100),
			(packet{flags: tcpACK, id: 2, seq: 150, payload: pattern(100)}).train(1, 100),
		)},
		{"a longer segment", []arrival{
			{first.message(), &first, 0},
			{msg: (&packet{flags: tcpACK, id: 6, seq: 1100, payload: pattern(101)}).message()},
		}},
		{"a gap", change(base, func(p *packet) { p.seq++ })},
		{"the identification", change(base, func(p *packet) { p.id += 3 })},
		{"the hop limit", change(base, func(p *packet) { p.hops++ })},
		{"the options", change(base, func(p *packet) { p.options = []byte{1, 1, 1, 1} })},
		{"FIN", change(base, func(p *packet) { p.flags |= tcpFIN })},
		{"CWR", change(base, func(p *packet) { p.flags |= tcpCWR })},
		{"IPv6 after IPv4", change(base, func(p *packet) { p.v6 = true })},
		{"UDP after TCP", change(base, func(p *packet) { p.udp = true })},
		{"the identification of UDP", change(udp, func(p *packet) { p.id += 3 })},
		{"wrong checksums", damaged(base)},
		{"wrong checksums of UDP", damaged(udp)},
		{"wrong checksums of IPv6", damaged(packet{v6: true, flags: tcpACK, payload: pattern(300)})},
		{"a message without IP between", slices.Concat(
			[]arrival{{first.message(), &first, 0}},
			alone([]byte("not IP"), nil, []byte{8}),
			[]arrival{{first.message(), &first, 1}},
		)},
		{"acknowledgements", alone((&packet{flags: tcpACK}).message(), (&packet{flags: tcpACK}).message())},
	} {
		x, y := b.lroPair()
		y.postRecv(depth)
		x.sendAll(y, c.msgs)
		y.wantRuns(c.what, c.msgs)
		y.wantNone(y.recv)
	}
	x := b.newEnd(b.a, defaultSpec())
	s := lroSpec()
	s.qp.LROUDP = false
	y := b.newEnd(b.b, s)
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	y.postRecv(depth)
	x.sendAll(y, udp.train(0, 100))
	if runs := y.wantRuns("UDP without LROUDP", udp.train(0, 100)); len(runs) != 3 {
		b.Errorf("UDP without LROUDP: %v", runs)
	}
}

// Segments of several flows that arrive in turns are not mixed.
func lroFlows(b *bench) {
	x, y := b.lroPair()
	tcp, udp := packet{flags: tcpACK, payload: pattern(600)}, packet{udp: true, payload: pattern(800)}
	var want []arrival
	for i, a := range tcp.train(0, 150) {
		a.run = 2 * i
		want = append(want, a)
		want = append(want, udp.train(2*i+1, 100)[2*i:2*i+2]...)
	}
	y.postRecv(depth)
	x.sendAll(y, want)
	y.wantRuns("two flows", want)
	y.wantNone(y.recv)
}

// Segments of one flow that different senders sent, or one sender with different address
// handles, are not joined: a receive has one sender and one GRH. Messages for another QP in
// between arrive too.
func lroSenders(b *bench) {
	x, y := b.lroPair()
	z, w := b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, lroSpec())
	z.to(hca.QPRTS)
	w.to(hca.QPRTS)
	other, err := x.pd.CreateAH(hca.AHSpec{
		Port: x.host.Port, DLID: y.host.DLID, Global: true, DGID: y.gid().GID, SGIDIndex: x.host.SGIDIndex,
		HopLimit: 9, Traffic: 4,
	})
	must(b, err, "create AH")
	b.closeLater(other, "AH")
	p := packet{flags: tcpACK, payload: pattern(900)}
	want := p.train(0, 150)
	y.postRecv(depth)
	w.postRecv(depth)
	for i := range want {
		want[i].run = i
		from := x
		if i%3 == 1 {
			from = z
		}
		wr := from.wr(1, y, from.message(0, want[i].msg))
		if i%3 == 2 {
			wr.UD.AH = other
		}
		from.postSend(wr, from.wr(2, w, from.message(1, want[i].msg)))
		from.next(from.send, 2)
	}
	y.wantRuns("several senders", want)
	for i := range want {
		want[i].run = []int{0, 1, 2, 2, 3, 4}[i] // x sends the third and the fourth
	}
	w.wantRuns("several senders, one address handle each", want)
}

// A large receive is never longer than the receive. Several that are too short for two
// messages get one each.
func lroSmallReceives(b *bench) {
	p := packet{flags: tcpACK, payload: pattern(1500)}
	want := p.train(0, 100)
	message := len(want[0].msg)
	for _, room := range []int{message, 2*message - 1, message + 100, message + 99, message + 250} {
		x, y := b.lroPair()
		for i := range depth {
			wr := hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{y.rx.SGE(i*slotSize, hca.GRHLen+room)}}
			if n, err := y.qp.PostRecv([]hca.RecvWR{wr}); n != 1 {
				b.Fatalf("post receive: %v", err)
			}
		}
		for i := range y.rx.Bytes() {
			y.rx.Bytes()[i] = 0xee
		}
		x.postSend(x.large(5, y, &p, 100))
		for _, n := range y.wantRuns(fmt.Sprintf("room for %d bytes", room), want) {
			if message+(n-1)*100 > room {
				b.Errorf("%d messages in %d bytes", n, room)
			}
		}
		for i := range depth {
			rest := y.rx.Bytes()[i*slotSize+hca.GRHLen+room : (i+1)*slotSize]
			if len(bytes.TrimLeft(rest, "\xee")) > 0 {
				b.Errorf("receive %d of %d bytes: memory behind it has changed", i, room)
			}
		}
		x.next(x.send, 1)
		y.wantNone(y.recv)
	}
}

// Receives of several pieces get the same messages as receives of one piece.
func lroScatters(b *bench) {
	p := packet{flags: tcpACK, payload: pattern(700)}
	x, y := b.lroPair()
	want := p.train(0, 100)
	const piece = hca.GRHLen + 60
	for i := range depth {
		wr := hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{
			y.rx.SGE(i*slotSize, piece),
			y.rx.SGE(i*slotSize+piece, slotSize-piece),
		}}
		if n, err := y.qp.PostRecv([]hca.RecvWR{wr}); n != 1 {
			b.Fatalf("post receive: %v", err)
		}
	}
	x.postSend(x.large(5, y, &p, 100))
	y.wantRuns("in pieces", want)
}

func lroToItself(b *bench) {
	x := b.newEnd(b.a, lroSpec())
	x.to(hca.QPRTS)
	p := packet{flags: tcpACK, payload: pattern(700)}
	x.postRecv(depth)
	x.postSend(x.large(5, x, &p, 100))
	x.wantRuns("to itself", p.train(0, 100))
}

// Messages to a group are not joined.
func lroGroup(b *bench) {
	x, y := b.newEnd(b.a, lroSpec()), b.newEnd(b.b, lroSpec())
	p := packet{flags: tcpACK, payload: pattern(700)}
	for _, e := range []*end{x, y} {
		e.to(hca.QPRTS)
		e.join()
		e.postRecv(depth)
	}
	wr := x.large(1, y, &p, 100)
	wr.UD.AH, wr.UD.QPN = x.ah(b.f.MGID, b.f.MLID), hca.QPNMulticast
	x.postSend(wr)
	x.next(x.send, 1)
	for _, e := range []*end{x, y} {
		e.wantNext("to a group", p.segments(100)...)
	}
}

// In ERR every receive completes once: first those that have messages, then the others, flushed.
func lroFlushed(b *bench) {
	x, y, sent := b.lroTraffic()
	must(b, y.step(hca.QPRTS, hca.QPErr), "to ERR")
	messages, flushed := 0, false
	var seen [depth]bool
	for i, wc := range y.next(y.recv, depth) {
		switch {
		case wc.ID >= depth || seen[wc.ID]:
			b.Fatalf("completion %d: %+v", i, wc)
		case wc.Status == hca.WCSuccess && !flushed:
			messages += max(1, wc.LRO.Segments)
		case wc.Status != hca.WCWRFlushErr || wc.LRO != hca.LRO{}:
			b.Errorf("completion %d: %+v", i, wc)
		default:
			flushed = true
		}
		seen[wc.ID] = true
	}
	if messages != sent {
		b.Errorf("%d messages in the receives, %d arrived", messages, sent)
	}
	y.wantNone(y.recv)
	x.wantNone(x.send)
}

// RESET drops the messages that no Poll has returned, and nothing of them is joined later.
func lroReset(b *bench) {
	x, y, _ := b.lroTraffic()
	must(b, y.step(hca.QPRTS, hca.QPReset), "to RESET")
	y.wantNone(y.recv)
	y.to(hca.QPRTS)
	y.postRecv(depth)
	p := packet{flags: tcpACK, id: 7, seq: 700, payload: pattern(700)}
	x.postSend(x.large(1, y, &p, 100))
	y.wantRuns("after RESET", p.train(0, 100))
}

// lroTraffic returns a pair after the second end got messages of one flow, which it has not
// polled, and the number of these messages.
func (b *bench) lroTraffic() (x, y *end, messages int) {
	b.Helper()
	x, y = b.lroPair()
	z := b.newEnd(b.b, defaultSpec())
	z.to(hca.QPRTS)
	z.postRecv(1)
	y.postRecv(depth)
	p := packet{flags: tcpACK, payload: pattern(700)}
	x.postSend(x.large(1, y, &p, 100))
	x.next(x.send, 1)
	x.probe(z, "what was sent before has arrived")
	return x, y, len(p.cut(100))
}
