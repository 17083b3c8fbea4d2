package hcatest

import "ipoibd/hca"

var multicastChecks = []check{
	{name: "multicast/to_every_member", run: multicastMembers, needs: hasGroup},
	{name: "multicast/own_comes_back", run: multicastOwn, needs: func(f Features, h Host) bool {
		return hasGroup(f, h) && f.OwnGroupLoops
	}},
	{name: "multicast/own_blocked", run: multicastOwnBlocked, needs: func(f Features, h Host) bool {
		return hasGroup(f, h) && h.Dev.Attr().BlocksLoop
	}},
	{name: "multicast/block_refused", run: multicastBlockRefused, needs: func(_ Features, h Host) bool {
		return !h.Dev.Attr().BlocksLoop
	}},
	{name: "multicast/detached", run: multicastDetached, needs: hasGroup},
	{name: "multicast/refusals", run: multicastRefusals, needs: hasGroup},
	{name: "multicast/not_a_group", run: multicastNoGroup},
}

func hasGroup(f Features, _ Host) bool { return !f.MGID.IsZero() }

// group returns the group for an end to attach to.
func (e *end) group() hca.MulticastGroup {
	return hca.MulticastGroup{MGID: e.f.MGID, MLID: e.f.MLID, SGIDIndex: e.host.SGIDIndex}
}

// join attaches an end for the rest of the test.
func (e *end) join() {
	e.Helper()
	must(e, e.qp.AttachMulticast(e.group()), "attach")
	e.Cleanup(func() {
		if err := e.qp.DetachMulticast(e.group()); err != nil {
			e.Errorf("detach: %v", err)
		}
	})
}

// sendGroup sends to the group.
func (e *end) sendGroup(text string) {
	e.Helper()
	e.postSend(hca.SendWR{ID: 1, SGList: []hca.SGE{e.message(0, []byte(text))}, UD: hca.UDDest{
		AH: e.ah(e.f.MGID, e.f.MLID), QPN: hca.QPNMulticast, QKey: qkey,
	}})
	e.wantStatus(e.next(e.send, 1), hca.WCSuccess, 1)
}

func (e *end) wantText(text string) {
	e.Helper()
	if got := string(e.received(e.next(e.recv, 1)[0])); got != text {
		e.Fatalf("received %q, want %q", got, text)
	}
}

// A send to the group reaches every attached QP and no other.
func multicastMembers(b *bench) {
	x := b.newEnd(b.a, defaultSpec())
	y, z, stranger := b.newEnd(b.b, defaultSpec()), b.newEnd(b.b, defaultSpec()), b.newEnd(b.b, defaultSpec())
	for _, e := range []*end{x, y, z, stranger} {
		e.to(hca.QPRTS)
		e.postRecv(2)
	}
	y.join()
	z.join()
	x.sendGroup("to all")
	y.wantText("to all")
	z.wantText("to all")
	x.probe(stranger, "only this")
	for _, e := range []*end{y, z, stranger} {
		e.wantNone(e.recv)
	}
}

// Own multicast comes back to members on the same port, the sender included.
func multicastOwn(b *bench) {
	x, y := b.newEnd(b.a, defaultSpec()), b.newEnd(b.a, defaultSpec())
	for _, e := range []*end{x, y} {
		e.to(hca.QPRTS)
		e.postRecv(2)
		e.join()
	}
	x.sendGroup("echo")
	for _, e := range []*end{x, y} {
		wc := e.next(e.recv, 1)[0]
		_, dst, err := hca.ParseGRH(e.rx.Bytes()[:hca.GRHLen], wc.Network)
		must(b, err, "parse GRH")
		if string(e.received(wc)) != "echo" || wc.SrcQPN != x.qp.Num() || dst != b.f.MGID {
			b.Errorf("own multicast %+v to %v", wc, dst)
		}
		e.wantNone(e.recv)
	}
}

// A QP that blocks its own multicast still gets multicast from others, and others get its multicast,
// on its port and elsewhere.
func multicastOwnBlocked(b *bench) {
	blocks := blockingSpec()
	x, y, z := b.newEnd(b.a, blocks), b.newEnd(b.a, blocks), b.newEnd(b.b, blocks)
	for _, e := range []*end{x, y, z} {
		e.to(hca.QPRTS)
		e.postRecv(3)
		e.join()
	}
	x.sendGroup("of x")
	y.wantText("of x")
	z.wantText("of x")
	z.sendGroup("of z")
	x.wantText("of z")
	y.wantText("of z")
	x.probe(x, "to itself") // unicast to itself is not blocked
	for _, e := range []*end{x, y, z} {
		e.wantNone(e.recv)
	}
}

// blockingSpec is defaultSpec for a QP that blocks its own multicast.
func blockingSpec() spec {
	s := defaultSpec()
	s.qp.BlockLoopback = true
	return s
}

func multicastBlockRefused(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	_, err := e.pd.CreateQP(blockingSpec().qp, e.send, e.recv)
	b.wantErr(err, hca.ErrInvalid, "create QP that blocks its own multicast")
}

// After the detach a QP receives no more group messages; others still do.
func multicastDetached(b *bench) {
	x, y, z := b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, defaultSpec()), b.newEnd(b.b, defaultSpec())
	for _, e := range []*end{x, y, z} {
		e.to(hca.QPRTS)
		e.postRecv(3)
	}
	z.join()
	must(b, y.qp.AttachMulticast(y.group()), "attach")
	x.sendGroup("attached")
	y.wantText("attached")
	z.wantText("attached")
	must(b, y.qp.DetachMulticast(y.group()), "detach")
	x.sendGroup("detached")
	z.wantText("detached")
	x.probe(y, "only this")
}

func multicastRefusals(b *bench) {
	x, _ := b.pair()
	must(b, x.qp.AttachMulticast(x.group()), "attach")
	b.wantErr(x.qp.AttachMulticast(x.group()), hca.ErrInvalid, "attach again")
	b.wantErr(x.qp.Close(), hca.ErrBusy, "close while attached")
	must(b, x.qp.DetachMulticast(x.group()), "detach")
	b.wantErr(x.qp.DetachMulticast(x.group()), hca.ErrInvalid, "detach again")
}

func multicastNoGroup(b *bench) {
	x, y := b.pair()
	g := hca.MulticastGroup{MGID: y.gid().GID, SGIDIndex: x.host.SGIDIndex}
	b.wantErr(x.qp.AttachMulticast(g), hca.ErrInvalid, "attach to a unicast address")
}
