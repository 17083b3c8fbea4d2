package docs

import "testing"

func TestMeaningsOfCounters(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{InterfaceCounter("tx_read"), "frames read from ib0"},
		{InterfaceCounter("rx_drop_too_long"), "longer than the group's MTU"},
		{InterfaceCounter("tx_wc_loc_prot_err"), "the send failed, by the status of its completion, such as tx_wc_wr_flush_err"},
		{InterfaceCounter("tap_bytes_64_127"), "passed frames by their length in bytes"},
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
