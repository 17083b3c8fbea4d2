package memsubnet_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/soft/memsubnet"
)

// A message without a GRH identifies its sender by LID and QPN, and its GRH area is rubbish, in all pieces of the
// receive.
func TestUnicastWithoutGRH(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		to := a.to(b)
		to.AH = a.ah(hca.AHSpec{DLID: 8, SL: 5})
		a.send(to, "hello")
		m := b.want("hello")[0]
		if m.SLID != 4 || m.SrcQPN != a.qp.Num() || m.SL != 5 ||
			m.Flags&hca.WCFlagGRH != 0 || m.Network != hca.NetworkUnknown {
			t.Errorf("completion %+v", m.WC)
		}
		if !bytes.Equal(m.area[:], bytes.Repeat([]byte{memsubnet.NoGRH}, hca.GRHLen)) {
			t.Errorf("GRH area %x", m.area)
		}
		if _, _, err := hca.ParseGRH(m.area[:], hca.NetworkUnknown); !errors.Is(err, hca.ErrGRH) {
			t.Errorf("parse GRH: %v", err)
		}
		b.send(b.to(a), "hello back")
		if m := a.want("hello back")[0]; m.SLID != 8 || m.SrcQPN != b.qp.Num() || m.SL != 0 {
			t.Errorf("completion %+v", m.WC)
		}
		wantDrops(t, s, nil)
		if sent, received := a.port.Packets(hca.PKeyDefault); sent != 1 || received != 1 {
			t.Errorf("packets %d, %d", sent, received)
		}
	})
}

// A handle with a GRH also goes by its LID. All fields of the GRH arrive.
func TestUnicastWithGRH(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		prefix := func(p *hca.PortAttr) { p.GIDs[0].GID[1] = 0xc0 }
		a.port.Change(prefix)
		b.port.Change(prefix)
		b.port.Change(func(p *hca.PortAttr) {
			p.GIDs = append(p.GIDs, hca.GIDEntry{}, hca.GIDEntry{GID: hca.GID{0xfe, 0xc0, 15: 3}})
		})
		sgid, dgid, second := a.port.Attr().GIDs[0].GID, b.port.Attr().GIDs[0].GID, hca.GID{0xfe, 0xc0, 15: 3}
		for _, c := range []struct {
			dgid         hca.GID
			traffic, hop uint8
			flow         uint32
		}{{dgid, 0, 0, 0}, {dgid, 255, 255, 0xfffff}, {second, 9, 1, 0x12345}} {
			to := a.to(b)
			to.AH = a.ah(hca.AHSpec{
				DLID: 8, Global: true, DGID: c.dgid, Traffic: c.traffic, HopLimit: c.hop, FlowLabel: c.flow, SL: 1,
			})
			a.send(to, "x")
			m := b.want("x")[0]
			first := binary.BigEndian.Uint32(m.area[:])
			if m.SLID != 4 || m.SL != 1 || m.Flags&hca.WCFlagGRH == 0 || first>>28 != 6 ||
				uint8(first>>20) != c.traffic || first&0xfffff != c.flow || m.area[7] != c.hop ||
				hca.GID(m.area[8:]) != sgid || hca.GID(m.area[24:]) != c.dgid {
				t.Errorf("%+v: completion %+v, GRH area %x", c, m.WC, m.area)
			}
		}
		for i, spec := range []hca.AHSpec{
			{DLID: 8, Global: true, DGID: sgid},                      // of another port
			{DLID: 8, Global: true, DGID: hca.GID{0xfe, 0x80, 1}},    // of no port
			{DLID: 12, Global: true, DGID: dgid},                     // at a LID of no port
			{DLID: 4, Global: true, DGID: hca.GID{0xfe, 0x80, 0, 1}}, // another subnet, at its own LID
		} {
			to := a.to(b)
			to.AH = a.ah(spec)
			a.send(to, "lost")
			wantDrops(t, s, map[memsubnet.Drop]uint64{
				memsubnet.DropWrongGID: []uint64{1, 2, 2, 3}[i], memsubnet.DropNoLID: []uint64{0, 0, 1, 1}[i],
			})
		}
		b.want()
	})
}

// A port answers to all LIDs of its range, and its messages have the path bits that it uses.
func TestPathBits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		b.port.Change(func(p *hca.PortAttr) { p.LMC = 2 })
		attach(t, s, "not configured", 0).port.Change(func(p *hca.PortAttr) { p.LMC = 7 })
		for lid := uint16(7); lid <= 12; lid++ {
			to := a.to(b)
			to.AH = a.ah(hca.AHSpec{DLID: lid})
			a.send(to, "x")
		}
		b.want("x", "x", "x", "x")
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropNoLID: 2})
		for bits, slid := range map[uint16]uint16{0: 8, 1: 9, 3: 11, 6: 10} {
			b.port.SetPathBits(bits)
			b.send(b.to(a), "y")
			if m := a.want("y")[0]; m.SLID != slid {
				t.Errorf("path bits %d: SLID %d, want %d", bits, m.SLID, slid)
			}
		}
	})
}

// A handle keeps its LID. Once the port has another one, the handle leads nowhere, also that of the port itself,
// or to the port that has got the LID.
func TestLIDChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		toB, self := a.to(b), b.to(b)
		b.send(self, "to itself")
		if m := b.want("to itself")[0]; m.SLID != 8 || m.SrcQPN != b.qp.Num() || m.Flags != 0 {
			t.Errorf("completion %+v", m.WC)
		}
		b.port.Change(func(p *hca.PortAttr) { p.LID = 16 })
		a.send(toB, "lost")
		b.send(self, "lost as well")
		b.lid = 16
		a.send(a.to(b), "found")
		if m := b.want("found")[0]; m.SLID != 4 {
			t.Errorf("completion %+v", m.WC)
		}
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropNoLID: 2})
		if sent, _ := a.port.Packets(hca.PKeyDefault); sent != 1 {
			t.Errorf("%d packets sent", sent)
		}
		a.port.Change(func(p *hca.PortAttr) { p.LID = 8 })
		toA := b.to(a)
		toA.AH = self.AH
		b.send(toA, "to the successor")
		if m := a.want("to the successor")[0]; m.SLID != 16 {
			t.Errorf("completion %+v", m.WC)
		}
	})
}

// Handles that no InfiniBand HCA accepts are refused.
func TestAddressHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := attach(t, subnet(t), "a", 4)
		gid := a.port.Attr().GIDs[0].GID
		a.port.Change(func(p *hca.PortAttr) { p.GIDs = append(p.GIDs, hca.GIDEntry{}) })
		for name, spec := range map[string]hca.AHSpec{
			"port 0":                   {DLID: 4},
			"port 2":                   {Port: 2, DLID: 4},
			"no LID":                   {Port: 1},
			"no LID, with a GRH":       {Port: 1, Global: true, DGID: gid},
			"permissive LID":           {Port: 1, DLID: 0xffff},
			"MLID without GRH":         {Port: 1, DLID: mlid, DGID: mgid},
			"MLID with a unicast GID":  {Port: 1, DLID: mlid, Global: true, DGID: gid},
			"unicast LID with an MGID": {Port: 1, DLID: 4, Global: true, DGID: mgid},
			"GRH without DGID":         {Port: 1, DLID: 4, Global: true},
			"SL of five bits":          {Port: 1, DLID: 4, SL: 16},
			"flow label of 21 bits":    {Port: 1, DLID: 4, Global: true, DGID: gid, FlowLabel: 1 << 20},
			"index of an empty GID":    {Port: 1, DLID: 4, Global: true, DGID: gid, SGIDIndex: 1},
			"index of no GID":          {Port: 1, DLID: 4, Global: true, DGID: gid, SGIDIndex: 2},
			"negative index":           {Port: 1, DLID: 4, Global: true, DGID: gid, SGIDIndex: -1},
		} {
			if _, err := a.pd.CreateAH(spec); !errors.Is(err, hca.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		spec := hca.AHSpec{Port: 1, DLID: 4, SL: 15, DGID: mgid, SGIDIndex: 9} // without a GRH its fields do not count
		if ah := a.ah(spec); ah.Spec() != spec {
			t.Errorf("spec %+v", ah.Spec())
		}
		other, err := a.dev.AllocPD()
		a.made(other, err)
		foreign, err := other.CreateAH(spec)
		a.made(foreign, err)
		for _, ah := range []hca.AH{nil, foreign} {
			if n, err := a.qp.PostSend([]hca.SendWR{{UD: hca.UDDest{AH: ah}}}); n != 0 || !errors.Is(err, hca.ErrInvalid) {
				t.Errorf("posted %d, %v", n, err)
			}
		}
	})
}
