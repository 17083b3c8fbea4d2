package memsubnet_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/memsubnet"
)

var mgid = hca.GID{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 12: 0xff, 0xff, 0xff, 0xff}

const mlid = 0xc001

// An HCA of a subnet passes the suite with and without a GRH in unicasts, also below the wrapper of the
// daemon.
func TestConformance(t *testing.T) {
	guarded := func(d hca.Device) hca.Device { return guard.Wrap(d, guard.Options{}) }
	bare := func(d hca.Device) hca.Device { return d }
	t.Run("with GRH", func(t *testing.T) { hcatest.Run(t, harness(false, bare)) })
	t.Run("without GRH", func(t *testing.T) { hcatest.Run(t, harness(true, bare)) })
	t.Run("guarded", func(t *testing.T) { hcatest.Run(t, harness(true, guarded)) })
}

func harness(noGRH bool, wrap func(hca.Device) hca.Device) hcatest.Harness {
	return hcatest.Harness{
		Open: func(t *testing.T) (a, b hcatest.Host) {
			f := memfabric.New(1)
			s := memsubnet.New(f, memsubnet.SM{LID: 1})
			return conformant(t, s, "a", 4, wrap), conformant(t, s, "b", 8, wrap)
		},
		In: synctest.Test,
		Features: hcatest.Features{
			NoGRH: noGRH, MGID: mgid, MLID: mlid,
			SendErrorIsSQE: true, ShortRecvIsErr: true, LongSendIsErr: true,
			OverrunVoidsCQ: true, OwnGroupLoops: true, ChecksProtection: true, ChecksWholeRecv: true,
			LateRecvFlushes: true, SQDResumes: true, OtherPKey: true,
		},
	}
}

// conformant returns a host for the suite, which has joined its group.
func conformant(
	t *testing.T, s *memsubnet.Subnet, name string, lid uint16, wrap func(hca.Device) hca.Device,
) hcatest.Host {
	t.Helper()
	p := s.Attach(name, hca.GUID{7: byte(lid)}, lid)
	p.Change(func(a *hca.PortAttr) { a.PKeys = []hca.PKey{hca.PKeyDefault, 0x8001} })
	s.Join(lid, mgid, mlid, false)
	dev, err := p.Open(rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	return hcatest.Host{
		Dev: wrap(dev), Port: 1, DLID: lid,
		SetLink: func(up bool) {
			p.Change(func(a *hca.PortAttr) {
				if a.State = hca.PortDown; up {
					a.State = hca.PortActive
				}
			})
		},
		AddGID: func() {
			p.Change(func(a *hca.PortAttr) {
				a.GIDs = append(a.GIDs, hca.GIDEntry{GID: hca.GID{0xfe, 0x80, 15: 99}, Type: hca.GIDTypeIB})
			})
		},
		RemoveDev: dev.Netdev().Remove,
		Stall:     func(on bool) { dev.Netdev().SetWritable(!on) },
	}
}
