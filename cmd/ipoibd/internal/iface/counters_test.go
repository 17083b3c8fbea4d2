package iface

import (
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/link"
)

// lossesByAnotherName are counters of lost frames whose names do not say so, and counters of
// other things whose names do: a receive that was flushed held no frame.
var lossesByAnotherName = map[string]hca.CounterKind{
	"kernel_tx_dropped": hca.CountDrop, "kernel_rx_dropped": hca.CountDrop, "rx_wc_wr_flush_err": hca.CountTotal,
}

// Every counter of an interface and of its device has a kind; those of lost frames are named
// after that.
func TestEveryCounterHasAKind(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		a.inject(faults.Fault{Kind: faults.RecvErrorErr}, faults.Fault{Kind: faults.SendErrorErr})
		pingPong(t, a, b)
		time.Sleep(time.Second)
		s, d := a.status(), a.dev.Report(time.Now())
		for _, counters := range []report.Counters{s.Counters, s.Kernel, d.Counters} {
			for name, c := range counters {
				want, special := lossesByAnotherName[name]
				loss := regexp.MustCompile("_drop_|_wc_").MatchString(name)
				if c.Kind == hca.CountUnknown || special && c.Kind != want || !special && (c.Kind == hca.CountDrop) != loss {
					t.Errorf("%s has kind %d", name, c.Kind)
				}
			}
			t.Logf("%d counters", len(counters))
		}
		if s.Counters["rx_wc_wr_flush_err"].Value == 0 || s.Counters["tx_wc_loc_prot_err"].Value == 0 {
			t.Errorf("no request failed, so the test shows less: %v", s.Counters)
		}
		if want := s.Counters.Drops() + count(report.Interface{Counters: s.Kernel}, "tap_drop_"); s.Drops != want || s.Drops == 0 {
			t.Errorf("%d drops, want %d", s.Drops, want)
		}
		if d.Drops != d.Counters.Drops() {
			t.Errorf("device: %d drops, want %d", d.Drops, d.Counters.Drops())
		}
	})
}

// Each count of the TAP and of the kernel is shown once.
func TestCountersOfTheTAPAreComplete(t *testing.T) {
	shown := report.Counters{}
	shown.Add("", tapCounters(link.Counters{
		Read: 1, Written: 2, Drops: link.Drops{ReadTooLong: 3, WriteInvalid: 4, WriteDown: 5, WriteNoMem: 6, WriteOther: 7},
	}))
	shown.Add("kernel_", kernelCounters(link.KernelCounters{
		RxPackets: 8, RxBytes: 9, RxDropped: 10, RxErrors: 11, TxPackets: 12, TxBytes: 13, TxErrors: 14, TxDropped: 15,
	}))
	var values []uint64
	for n := range maps.Values(shown) {
		values = append(values, n.Value)
	}
	slices.Sort(values)
	for i, n := range values {
		if n != uint64(i+1) {
			t.Fatalf("values %v, want 1 to 15", values)
		}
	}
	if len(values) != 15 {
		t.Errorf("%d counters, want 15", len(values))
	}
}

// Messages to groups of another partition, which another interface on the port may have, are
// not losses of the port. Those for a partition that no interface of the port has are counted.
func TestGroupsOfAnotherPartitionAreNoLoss(t *testing.T) {
	twoPartitions(t, func(t *testing.T, a, b, c, d *testHost) {
		counters := func() report.Counters { return a.dev.Report(time.Now()).Counters }
		before := counters()
		for range 100 {
			c.resolve(c.ip.Next().Next().Next()) // the broadcast reaches the interfaces of both partitions
			d.resolve(d.ip.Next().Next().Next())
		}
		if after := counters(); after.Drops() != before.Drops() || after["rx_other_pkey"] != before["rx_other_pkey"] {
			t.Errorf("both partitions: %d drops, were %d; %v", after.Drops(), before.Drops(), after)
		}
		b.stop()
		before = counters()
		for range 100 {
			d.resolve(d.ip.Next().Next().Next())
		}
		if after := counters(); after.Drops() != before.Drops() || after["rx_other_pkey"].Value-before["rx_other_pkey"].Value < 100 {
			t.Errorf("one partition: %d drops, were %d; %v", after.Drops(), before.Drops(), after)
		}
	})
}
