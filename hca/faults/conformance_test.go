package faults_test

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/soft/memfabric"
)

// A wrapped device passes the suite like its backend, both without a pending fault and with
// pending faults that never fire.
func TestConformance(t *testing.T) {
	for name, never := range map[string][]faults.Kind{"idle": nil, "planned": faults.Kinds()} {
		t.Run(name, func(t *testing.T) { hcatest.Run(t, harness(never)) })
	}
}

func harness(never []faults.Kind) hcatest.Harness {
	return hcatest.Harness{
		Open: func(t *testing.T) (a, b hcatest.Host) {
			f := memfabric.New(1)
			return host(t, f, "a", rigAddr, never), host(t, f, "b", rigAddr.Next(), never)
		},
		In: synctest.Test,
		Features: hcatest.Features{
			MGID:           hca.GIDFromAddr(netip.MustParseAddr("239.1.2.3")),
			SendErrorIsSQE: true, ShortRecvIsErr: true, LongSendIsErr: true,
			OverrunVoidsCQ: true, OwnGroupLoops: true, ChecksProtection: true, ChecksWholeRecv: true,
			LateRecvFlushes: true, SQDResumes: true, OtherPKey: true,
		},
	}
}

func host(t *testing.T, f *memfabric.Fabric, name string, addr netip.Addr, never []faults.Kind) hcatest.Host {
	t.Helper()
	soft, port := openSoft(t, f, name, addr)
	dev := faults.Wrap(soft, faults.Options{})
	for _, k := range never {
		if err := dev.Inject(faults.Fault{Kind: k, After: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	return hcatest.Host{
		Dev: dev, Port: 1,
		SetLink:   port.SetUp,
		AddGID:    func() { port.AddAddr(netip.MustParseAddr("10.9.9.9")) },
		RemoveDev: port.Remove,
		Stall:     func(on bool) { port.SetWritable(!on) },
	}
}
