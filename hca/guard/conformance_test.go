package guard_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	group = netip.MustParseAddr("239.1.2.3")
)

// A guarded backend passes the suite like the bare one.
func TestConformance(t *testing.T) {
	wraps := map[string]func(hca.Device) hca.Device{
		"bare":          func(d hca.Device) hca.Device { return d },
		"guarded":       func(d hca.Device) hca.Device { return guard.Wrap(d, guard.Options{}) },
		"guarded twice": func(d hca.Device) hca.Device { return guard.Wrap(guard.Wrap(d, guard.Options{}), guard.Options{}) },
	}
	for name, wrap := range wraps {
		t.Run(name, func(t *testing.T) { hcatest.Run(t, harness(wrap)) })
	}
}

func harness(wrap func(hca.Device) hca.Device) hcatest.Harness {
	return hcatest.Harness{
		Open: func(t *testing.T) (a, b hcatest.Host) {
			f := memfabric.New(1)
			return host(t, f, "a", addrA, wrap), host(t, f, "b", addrB, wrap)
		},
		In: synctest.Test,
		Features: hcatest.Features{
			MGID: hca.GIDFromAddr(group), SendErrorIsSQE: true, ShortRecvIsErr: true, LongSendIsErr: true,
			OverrunVoidsCQ: true, OwnGroupLoops: true, ChecksProtection: true, ChecksWholeRecv: true,
			LateRecvFlushes: true, SQDResumes: true, OtherPKey: true,
		},
	}
}

// openSoft opens a software HCA with two lanes on a fabric.
func openSoft(t testing.TB, f *memfabric.Fabric, name string, addr netip.Addr) (*soft.Device, *memfabric.Port) {
	t.Helper()
	ports := f.AttachLanes(2, name, 1500, addr)
	cfg := soft.Config{
		Name: name, Transport: ports[0], PKeys: []hca.PKey{hca.PKeyDefault, 0x8001}, Rand: rand.New(rand.NewPCG(1, 2)),
	}
	cfg.More = append(cfg.More, ports[1])
	dev, err := soft.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return dev, ports[0]
}

func host(t *testing.T, f *memfabric.Fabric, name string, addr netip.Addr, wrap func(hca.Device) hca.Device) hcatest.Host {
	t.Helper()
	dev, port := openSoft(t, f, name, addr)
	return hcatest.Host{
		Dev: wrap(dev), Port: 1,
		SetLink:   port.SetUp,
		AddGID:    func() { port.AddAddr(netip.MustParseAddr("10.9.9.9")) },
		RemoveDev: port.Remove,
		Stall:     func(on bool) { port.SetWritable(!on) },
	}
}
