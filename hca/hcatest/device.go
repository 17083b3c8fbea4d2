package hcatest

import (
	"errors"

	"ipoibd/hca"
)

var deviceChecks = []check{
	{name: "device/attributes", run: deviceAttributes},
	{name: "device/port", run: devicePort},
	{name: "device/port_range", run: devicePortRange},
	{name: "device/ranges", run: deviceRanges},
	{name: "device/memory", run: deviceMemory},
	{name: "device/address_handles", run: deviceAddressHandles},
	{name: "device/numbers", run: deviceNumbers},
}

func (b *bench) wantErr(err, want error, what string) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("%s: %v, want %v", what, err, want)
	}
}

// The contract requires scatter/gather lists of two entries, and a node GUID.
func deviceAttributes(b *bench) {
	a := b.a.Dev.Attr()
	if a.MaxSGE < 2 || a.MaxQPWR < depth || a.MaxCQE < depth || a.Ports < b.a.Port || a.Name == "" {
		b.Errorf("attributes %+v", a)
	}
	if a.NodeGUID == (hca.GUID{}) || a.NodeGUID == b.b.Dev.Attr().NodeGUID {
		b.Errorf("node GUID %v, the other host's %v", a.NodeGUID, b.b.Dev.Attr().NodeGUID)
	}
}

// The caller owns the tables, and they contain the values that other tests depend on.
func devicePort(b *bench) {
	p, err := b.a.Dev.QueryPort(b.a.Port)
	must(b, err, "query port")
	g := p.GIDs[b.a.SGIDIndex]
	if p.State != hca.PortActive || !p.ActiveMTU.Valid() || p.ActiveMTU > p.MaxMTU {
		b.Errorf("port %+v", p)
	}
	if g.GID.IsZero() || g.MaxPayload < 1 || g.MaxPayload > int(p.ActiveMTU) || len(p.PKeys) == 0 {
		b.Errorf("GID %+v, MTU %d, P_Keys %v", g, p.ActiveMTU, p.PKeys)
	}
	p.GIDs[b.a.SGIDIndex].GID, p.PKeys[0] = hca.GID{}, 0
	again, err := b.a.Dev.QueryPort(b.a.Port)
	must(b, err, "query port again")
	if again.GIDs[b.a.SGIDIndex] != g || again.PKeys[0] == 0 {
		b.Error("a change of the returned tables changes the tables of the device")
	}
}

func devicePortRange(b *bench) {
	for _, num := range []uint8{0, b.a.Dev.Attr().Ports + 1} {
		_, err := b.a.Dev.QueryPort(num)
		b.wantErr(err, hca.ErrInvalid, "query port")
	}
}

// Specs outside the limits of the device are refused.
func deviceRanges(b *bench) {
	max := b.a.Dev.Attr()
	for _, n := range []int{-1, 0, max.MaxCQE + 1} {
		_, err := b.a.Dev.CreateCQ(hca.CQSpec{Entries: n})
		b.wantErr(err, hca.ErrRange, "create CQ")
	}
	e := b.newEnd(b.a, defaultSpec())
	for _, change := range []func(*hca.QPSpec){
		func(s *hca.QPSpec) { s.SendWRs = 0 },
		func(s *hca.QPSpec) { s.SendWRs = max.MaxQPWR + 1 },
		func(s *hca.QPSpec) { s.RecvWRs = 0 },
		func(s *hca.QPSpec) { s.RecvWRs = max.MaxQPWR + 1 },
		func(s *hca.QPSpec) { s.SendSGEs = 0 },
		func(s *hca.QPSpec) { s.SendSGEs = max.MaxSGE + 1 },
		func(s *hca.QPSpec) { s.RecvSGEs = 0 },
		func(s *hca.QPSpec) { s.RecvSGEs = max.MaxSGE + 1 },
	} {
		s := defaultSpec().qp
		change(&s)
		_, err := e.pd.CreateQP(s, e.send, e.recv)
		b.wantErr(err, hca.ErrRange, "create QP")
	}
}

// Memory is zeroed and page-aligned, and SGE panics outside its bounds.
func deviceMemory(b *bench) {
	const page, size = 4096, 5000
	e := b.newEnd(b.a, defaultSpec())
	mr := e.memory(size, hca.AccessLocalWrite)
	if len(mr.Bytes()) != size || mr.SGE(0, 1).Addr%page != 0 {
		b.Errorf("%d bytes at %#x", len(mr.Bytes()), mr.SGE(0, 1).Addr)
	}
	for i, c := range mr.Bytes() {
		if c != 0 {
			b.Fatalf("byte %d is %d", i, c)
		}
	}
	first, last := mr.SGE(0, size), mr.SGE(size-1, 1)
	if last.Addr != first.Addr+size-1 || last.LKey != first.LKey || first.Length != size {
		b.Errorf("entries %+v and %+v", first, last)
	}
	for _, r := range [][2]int{{0, size + 1}, {size, 1}, {-1, 1}, {1, -1}} {
		if !panics(func() { mr.SGE(r[0], r[1]) }) {
			b.Errorf("SGE%v did not panic", r)
		}
	}
	_, err := e.pd.AllocMR(0, 0)
	b.wantErr(err, hca.ErrInvalid, "allocate nothing")
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func deviceAddressHandles(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	good := e.globalAH(e.gid().GID, e.host.DLID)
	ah, err := e.pd.CreateAH(good)
	must(b, err, "create AH")
	b.closeLater(ah, "AH")
	if s := ah.Spec(); s != good {
		b.Errorf("spec %+v, want %+v", s, good)
	}
	for _, change := range []func(*hca.AHSpec){
		func(s *hca.AHSpec) { s.Port = b.a.Dev.Attr().Ports + 1 },
		func(s *hca.AHSpec) { s.SGIDIndex = 1 << 15 },
		func(s *hca.AHSpec) { s.SGIDIndex = -1 },
	} {
		s := good
		change(&s)
		_, err := e.pd.CreateAH(s)
		b.wantErr(err, hca.ErrInvalid, "create AH")
	}
}

// QPs have unique numbers, and QPs and CQs unique IDs.
func deviceNumbers(b *bench) {
	seen, ids := map[hca.QPN]bool{0: true, hca.QPNGSI: true, hca.QPNMulticast: true}, map[hca.ObjectID]bool{}
	for range 8 {
		e := b.newEnd(b.a, defaultSpec())
		n := e.qp.Num()
		if seen[n] || n&^hca.QPNMask != 0 {
			b.Errorf("QP number %v", n)
		}
		seen[n] = true
		for _, id := range []hca.ObjectID{e.qp.ID(), e.send.ID(), e.recv.ID()} {
			if ids[id] || id.Kind == hca.KindNone {
				b.Errorf("ID %+v", id)
			}
			ids[id] = true
		}
		if e.qp.ID().Num != uint32(n) || e.qp.ID().Kind != hca.KindQP || e.send.ID().Kind != hca.KindCQ {
			b.Errorf("IDs %+v and %+v", e.qp.ID(), e.send.ID())
		}
		if e.qp.Spec() != defaultSpec().qp {
			b.Errorf("spec %+v", e.qp.Spec())
		}
	}
}
