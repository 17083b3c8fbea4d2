package docs

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the tables of counters.md")

// The tables of counters.md are those of this package. To change them, run go test with -update.
func TestTablesOfCounters(t *testing.T) {
	page, err := os.ReadFile("counters.md")
	if err != nil {
		t.Fatal(err)
	}
	prose, stored, found := strings.Cut(string(page), heading)
	if !found {
		t.Fatalf("counters.md has no line %q", heading)
	}
	if *update {
		if err := os.WriteFile("counters.md", []byte(prose+tables()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if heading+stored != tables() {
		t.Error("counters.md is not up to date: run 'go test ./docs -update'")
	}
}

// No counter occurs twice.
func TestCountersAreUnique(t *testing.T) {
	if n := len(hostCounters) + len(fabricCounters) + len(peerCounters) + len(otherCounters); len(ofInterface()) != n {
		t.Errorf("%d names of %d counters of an interface", len(ofInterface()), n)
	}
	if n := len(softCounters) + len(deviceCounters); len(ofDevice()) != n {
		t.Errorf("%d names of %d counters of a device", len(ofDevice()), n)
	}
}

func TestMeaningsOfCounters(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{InterfaceCounter("tx_read"), "frames read from ib0"},
		{InterfaceCounter("rx_drop_too_long"), "longer than the group's MTU"},
		{InterfaceCounter("tx_wc_loc_prot_err"), "the send failed, by completion status, such as tx_wc_wr_flush_err"},
		{InterfaceCounter("tap_bytes_64_127"), "passed frames by length in bytes"},
		{InterfaceCounter("neigh_drop_unresolved"), "the destination did not answer"},
		{DeviceCounter("rx_drop_no_qp"), "no queue pair has that number"},
		{DeviceCounter("wire_tx_drop_no_device"), "the underlay is gone"},
		{DeviceCounter("port1_counter_of_some_driver"), ""},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

func TestLost(t *testing.T) {
	for name, want := range map[string]bool{
		"rx_drop_icrc": true, "wire_socket_drops": true, "kernel_tx_dropped": true, "kernel_rx_errors": true,
		"tx_wc_rem_op_err": true, "rx_wc_wr_flush_err": false, "rx_other_pkey": false, "wire_icmp_errors": false,
		"tx_sent": false, "port1_counter_of_some_driver": false,
	} {
		if got := Lost(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
