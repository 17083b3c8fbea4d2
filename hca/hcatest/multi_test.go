package hcatest_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
)

// A device with several queues passes the suite, on its own and wrapped.
func TestMultiConformance(t *testing.T) {
	for name, wrap := range map[string]func(hca.Device) hca.Device{
		"bare":    func(d hca.Device) hca.Device { return d },
		"faults":  func(d hca.Device) hca.Device { return faults.Wrap(d, faults.Options{}) },
		"guarded": func(d hca.Device) hca.Device { return guard.Wrap(d, guard.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			hcatest.Run(t, hcatest.Harness{
				In: synctest.Test,
				Open: func(t *testing.T) (a, b hcatest.Host) {
					f := memfabric.New(1)
					return host(t, f, "a", wrap), host(t, f, "b", wrap)
				},
				Features: hcatest.Features{
					MGID: hca.GIDFromAddr(netip.MustParseAddr("239.1.2.3")), SendErrorIsSQE: true, ShortRecvIsErr: true, LongSendIsErr: true,
					OverrunVoidsCQ: true, OwnGroupLoops: true, ChecksProtection: true, ChecksWholeRecv: true,
					LateRecvFlushes: true, SQDResumes: true, OtherPKey: true,
				},
			})
		})
	}
}

func host(t *testing.T, f *memfabric.Fabric, name string, wrap func(hca.Device) hca.Device) hcatest.Host {
	t.Helper()
	port := f.Attach(name, 1500, netip.AddrFrom4([4]byte{10, 0, 0, name[0]}))
	dev, err := soft.Open(soft.Config{
		Name: name, Transport: port, PKeys: []hca.PKey{hca.PKeyDefault, 0x8001}, Rand: rand.New(rand.NewPCG(1, 2)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return hcatest.Host{
		Dev: wrap(hcatest.NewMulti(dev, 3)), Port: 1,
		SetLink:   port.SetUp,
		AddGID:    func() { port.AddAddr(netip.MustParseAddr("10.9.9.9")) },
		RemoveDev: port.Remove,
		Stall:     func(on bool) { port.SetWritable(!on) },
	}
}
